"""One task behind the protocols: from a request's questions to the answers that it wants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mttl.data.prompt_form import PromptForm
from mttl.inference.predictor import Predictor
from mttl.serving.generation_request import GenerationRequest, Piece
from mttl.serving.protocol import MOST_ANSWERS, ApiError, ChatRequest, CompletionRequest, Message


@dataclass(frozen=True)
class ServedTask:
    """A task and the model that answers it, which may answer other tasks, too."""

    name: str
    predictor: Predictor
    most_tokens: int  # largest ``max_tokens``; answers may always be as long as in training
    truncate: bool  # cut long questions as in training; else they are refused

    def encode(self, questions: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the ids of questions, and how many were cut off."""
        empty = [str(place) for place, text in enumerate(questions) if not text.strip()]
        if empty:
            places = f"number {', '.join(empty)} of {len(questions)}, counted from 0"
            raise ApiError(400, f"a question is empty ({places}); every one must hold text")
        form, lost = self.predictor.form, []
        texts = [form.text(self.name, question) for question in questions]
        prompt_prefixes = [form.prompt_prefix(self.name)] * len(texts)
        prompts = self.predictor.encoder.prompts(texts, prompt_prefixes, lost)
        if lost and not self.truncate:
            most = form.max_input_length
            raise ApiError(
                400,
                f"a question has {most + max(lost)} tokens with what the model reads around it; at "
                f"most {most} are allowed, as in training. Shorten it (mttl serve --truncate "
                "cuts it)",
                code="context_length_exceeded",
            )
        return prompts, sum(lost)

    def wanted(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: Sequence[Sequence[int]],
        send: Callable[[int, Piece], object],
    ) -> list[GenerationRequest]:
        """Return the answers that a request wants, ``n`` for each question.

        ``send`` gets the pieces of each answer, with its place.
        """
        asked, n_wanted = request.max_tokens, len(prompts) * request.n
        if isinstance(request, ChatRequest):
            asked = asked or request.max_completion_tokens
        usual, decoder_only = self.predictor.search["max_new_tokens"], self.predictor.decoder_only
        most_tokens, allowed = asked or usual, max(self.most_tokens, usual)
        config = self.predictor.model.backbone.config
        n_positions = getattr(config, "max_position_embeddings", None)
        if n_positions is not None:
            n_before = max(map(len, prompts)) if decoder_only else 0
            allowed = min(allowed, n_positions - n_before)
        temperature = request.temperature
        if temperature is None:  # OpenAI's default where the other is given; else the run's search
            temperature = 0.0 if request.top_p is None else 1.0
        n_beams = 1 if temperature > 0 else self.predictor.search["num_beams"]
        problems = {
            "n": n_wanted > MOST_ANSWERS
            and f"{len(prompts)} questions with n={request.n} want {n_wanted} answers; a request "
            f"may want at most {MOST_ANSWERS}",
            "max_tokens": most_tokens > allowed
            and f"max_tokens ({most_tokens}) must be at most {allowed} for this question",
            "logprobs": n_beams > 1
            and request.n_logprobs is not None
            and f"the run searches with {n_beams} beams, where tokens have no log-probabilities of "
            "their own; leave logprobs out, or draw with a temperature above 0",
        }
        for param, problem in problems.items():
            if problem:
                code = "context_length_exceeded" if param == "max_tokens" else None
                raise ApiError(400, problem, param=param, code=code)
        settings = {
            "task_id": int(self.predictor.task_ids([self.name])),
            "most_tokens": most_tokens,
            "n_beams": n_beams,
            "n_positions": n_positions if decoder_only else None,
            "temperature": temperature,
            "top_p": request.top_p or 1.0,
            "stop": tuple(request.stop),
            "n_logprobs": request.n_logprobs,
            "stream": request.stream,
        }
        return [
            GenerationRequest(
                prompt=prompt,
                seed=None if request.seed is None else f"{request.seed}/{place}",
                send=partial(send, place),
                **settings,
            )
            for place, prompt in enumerate(own for own in prompts for _ in range(request.n))
        ]


def chat_question(messages: Sequence[Message], form: PromptForm, task: str) -> str:
    """Return the input of a task that the messages of a chat hold."""
    system = form.prompt_prefix(task).system
    if messages[0].role in ("system", "developer") and messages[0].text.strip() in ("", system):
        messages = messages[1:]  # empty, or stands there anyway
    roles = [message.role for message in messages]
    if roles != ["user"]:
        found = f"the messages are of {', '.join(roles)}" if roles else "no message is of the user"
        raise ApiError(
            400,
            f"{found}; the task was trained on single questions, so "
            "there must be one message, of the user. Put what it needs to know into that one",
            param="messages",
        )
    return messages[0].text

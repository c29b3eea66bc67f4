r"""Encode questions and answers as a chat, in the form of the tokenizer's own chat template.

The template is rendered once per system text, with two words in the places of question and answer::

    <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n   QUESTION   <|im_end|>\n<|im_start|>assistant\n   ANSWER   <|im_end|>\n
    ------------------------- head -----------------------            ------------- tail ---------------            ---- end ----

A prompt is head, question and tail; an answer what follows, the end of the turn included. Text is
encoded as a whole, as `apply_chat_template` does, so that prompt and answer are its ids of the
conversation, and no special token stands there but the template's own.
"""  # noqa: E501 -- a conversation is one line

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from mttl.config.data_schema import Truncate
from mttl.data.encode import Frame, TextEncoder
from mttl.data.opening import Opening
from mttl.errors import ConfigError
from mttl.reading import reason

# Words that no template holds, nor changes.
_QUESTION, _ANSWER = "QuestionOfTheUser", "AnswerToTheUser"
_ADVICE = "Name a tokenizer with another one (backbone.tokenizer), or set data.template: plain"


class ChatEncoder(TextEncoder):
    """Encodes questions and answers for a decoder-only model by its tokenizer's chat template.

    Args:
        tokenizer: One that has a chat template.
        max_input_length: The most ids of a prompt, the template's included.
        max_output_length: The most ids of an answer, the end of its turn included.
        truncate: Which side of a question that is too long is cut; the template's text stays.
        system: A system text that chats have, if all of them have one; templates may need it.

    Raises:
        ConfigError: If there is no chat template, or it cannot be used; the message says why.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_input_length: int,
        max_output_length: int,
        truncate: Truncate = "end",
        system: str | None = None,
    ):
        super().__init__(
            tokenizer,
            decoder_only=True,
            max_input_length=max_input_length,
            max_output_length=max_output_length,
            truncate=truncate,
        )
        if not tokenizer.chat_template:
            raise ConfigError(
                f"data.template is 'chat', and the tokenizer '{tokenizer.name_or_path}' has no "
                f"chat template. {_ADVICE}"
            )
        self.leading_space = ""
        self._frames: dict[str | None, Frame] = {}
        self._answered = self.frame(system)
        self._answer_ends = self._ids_of(self._answered.lead), self._ids_of(self._answered.end)
        self._check_room("max_output_length", self._max_lengths[1], self._answer_ends)
        if not self.stops:
            raise ConfigError(
                f"data.template is 'chat', and the chat template puts no special token after an "
                f"answer, so generation could not stop. {_ADVICE}"
            )

    @property
    def stops(self) -> list[int]:
        """The id that ends an answer: the first special one after it."""
        added = self.tokenizer.added_tokens_decoder  # type: ignore[attr-defined]
        special = {*self.tokenizer.all_special_ids, *(i for i, t in added.items() if t.special)}
        return [token for token in self._answer_ends[1] if token in special][:1]

    def prompts(
        self, texts: Sequence[str], openings: Sequence[Opening] = (), lost: list[int] | None = None
    ) -> list[list[int]]:
        """Return the ids of each question as the beginning of a chat; see `TextEncoder.prompts`.

        Raises:
            ConfigError: If the template alone is longer than a prompt may be.
        """
        openings = [*openings] or [Opening("")] * len(texts)
        frames = [self.frame(opening.system) for opening in openings]
        prompts = self._ids(
            [frame.head + text + frame.tail for frame, text in zip(frames, texts, strict=True)]
        )
        for place, ids in enumerate(prompts):
            if len(ids) > self._max_lengths[0]:
                ends = self._ids_of(frames[place].head), self._ids_of(frames[place].tail)
                self._check_room("max_input_length", self._max_lengths[0], ends)
                (prompts[place],) = self._encode(
                    [texts[place]], ends, self._max_lengths[0], lost, [openings[place]]
                )
        return prompts

    def answers(self, texts: Sequence[str], lost: list[int] | None = None) -> list[list[int]]:
        """Return the ids of each answer as what the assistant says, to the end of its turn."""
        frame = self._answered
        before = self._ids_of(frame.tail)  # an answer's first token may depend on it
        answers = self._ids([frame.tail + frame.lead + text + frame.end for text in texts])
        for place, ids in enumerate(answers):
            if ids[: len(before)] == before:
                answers[place] = ids[len(before) :]
            else:  # the answer joins with what stands before it
                answers[place] = self._ids_of(frame.lead + texts[place] + frame.end)
            if len(answers[place]) > self._max_lengths[1]:
                (answers[place],) = self._encode(
                    [texts[place]], self._answer_ends, self._max_lengths[1], lost
                )
        return answers

    def frame(self, system: str | None = None) -> Frame:
        """Return what stands around questions that share a system text.

        Raises:
            ConfigError: If the template takes no such text, does not show a question as it is, or
                shows a conversation otherwise than its beginning.
        """
        if system not in self._frames:
            self._frames[system] = self._rendered(system)
        return self._frames[system]

    def _rendered(self, system: str | None) -> Frame:
        asked = [] if system is None else [{"role": "system", "content": system}]
        asked = [*asked, {"role": "user", "content": _QUESTION}]
        answered = [*asked, {"role": "assistant", "content": _ANSWER}]
        try:
            render: Any = self.tokenizer.apply_chat_template
            prompt = render(asked, tokenize=False, add_generation_prompt=True)
            whole = render(answered, tokenize=False)
        except Exception as error:  # templates are programs, and raise what they like
            told = "" if system is None else " with a system text (data.system, data.descriptions)"
            raise ConfigError(
                f"data.template is 'chat', and the chat template cannot be used{told}: "
                f"{reason(error)}. {_ADVICE}"
            ) from error
        parts = whole.removeprefix(prompt).split(_ANSWER)
        if (
            not whole.startswith(prompt)
            or prompt.count(_QUESTION) != 1
            or len(parts) != 2
            or (system is not None and system.strip() not in prompt)
        ):
            raise ConfigError(
                "data.template is 'chat', and the chat template does not show a conversation as "
                "its beginning and what follows, each text as it is and once; training and "
                f"prediction would differ. {_ADVICE}"
            )
        head, tail = prompt.split(_QUESTION)
        lead, end = parts
        if lead.strip():  # such as an empty thought: nothing that the model should have to write
            tail, lead = tail + lead, ""
        return Frame(head, tail, lead, end)

    def _ids_of(self, text: str) -> list[int]:
        return self._ids([text])[0] if text else []

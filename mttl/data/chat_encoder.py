r"""Encode inputs and answers as chats with the tokenizer's chat template.

The template is rendered once per system text, with placeholders for input and answer::

    <|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n   QUESTION   <|im_end|>\n<|im_start|>assistant\n   ANSWER   <|im_end|>\n
    ------------------------- head -----------------------            ------------- tail ---------------            ---- end ----

A prompt consists of head, input and tail; an answer includes the end of the turn. The text is
encoded as a whole, as in `apply_chat_template`, so that the ids are those of the conversation, with
no other special tokens than the template's. Long inputs are truncated until the chat fits. Of a
dialogue (`mttl.tasks.dialogue`) the knowledge is at the end of the system text, and the turns are
messages.
"""  # noqa: E501 -- a conversation is one line

import datetime
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from mttl.data.encode import Frame, PromptPrefix, TextEncoder, Turns
from mttl.data.user_text import UserText
from mttl.io.errors import ConfigError
from mttl.io.reading import reason
from mttl.tasks.dialogue import Dialogue

# Placeholders that do not occur in templates.
_QUESTION, _ANSWER, _SYSTEM = "QuestionOfTheUser", "AnswerToTheUser", "TextOfTheSystem"
_ADVICE = "Name a tokenizer with another one (backbone.tokenizer), or set data.template: plain"


class ChatEncoder(TextEncoder):
    """Encodes inputs and answers for a decoder-only model with a chat template.

    ``lengths`` are those of `TextEncoder`, with its truncation; the template's text is never cut.
    ``system`` is the text that all chats have, if any; ``date`` is shown by templates, by default
    today. Raises a `ConfigError` if there is no chat template, or it cannot be used.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        date: str | None = None,
        **lengths: Any,
    ):
        super().__init__(tokenizer, decoder_only=True, **lengths)
        if not tokenizer.chat_template:
            raise ConfigError(
                f"data.template is 'chat', but the tokenizer '{tokenizer.name_or_path}' has no "
                f"chat template. {_ADVICE}"
            )
        self.leading_space, self._date = "", date
        self._frames: dict[tuple[str | None, Turns], tuple[Frame, str]] = {}
        self._answered = frame = self.frame(system)
        self.user_text = UserText(tokenizer, "".join(frame))
        self._answer_ends = self._template_ids(frame.lead), self._template_ids(frame.end)
        self._check_room("max_output_length", self._max_lengths[1], self._answer_ends)
        if not self.stops:
            raise ConfigError(
                f"data.template is 'chat', but the chat template has no special token after an "
                f"answer, so generation could not stop. {_ADVICE}"
            )

    @property
    def stops(self) -> list[int]:
        """Id that ends an answer: the first special token after it."""
        added = self.tokenizer.added_tokens_decoder  # type: ignore[attr-defined]
        special = {*self.tokenizer.all_special_ids, *(i for i, t in added.items() if t.special)}
        return [token for token in self._answer_ends[1] if token in special][:1]

    def prompts(
        self,
        texts: Sequence[str],
        prompt_prefixes: Sequence[PromptPrefix] = (),
        lost: list[int] | None = None,
    ) -> list[list[int]]:
        """Return the ids of each input as the beginning of a chat; see `TextEncoder.prompts`."""
        prompt_prefixes = [*prompt_prefixes] or [PromptPrefix("")] * len(texts)
        prompts = self._asked(texts, prompt_prefixes)
        for place, ids in enumerate(prompts):
            if len(ids) > self._max_lengths[0]:
                prompts[place] = self._cut(texts[place], prompt_prefixes[place])
                if lost is not None:
                    lost.append(len(ids) - len(prompts[place]))
        return prompts

    def _cut(self, text: str, prompt_prefix: PromptPrefix) -> list[int]:
        most, kept = self._max_lengths[0], prompt_prefix.text.rstrip()

        def encode(question: str) -> list[int]:
            return self._asked([question], [prompt_prefix])[0]

        self._check_room("max_input_length", most, (encode(""), []))
        if prompt_prefix.dialogue:
            own = Dialogue.parse(text.removeprefix(prompt_prefix.text))
            short = own.shortened(lambda part: len(encode(prompt_prefix.text + part.text)) <= most)
            return encode(prompt_prefix.text + short.text)
        if self.truncate == "end" or len(encode(kept)) > most:
            return _longest(encode, text, most)
        rest = text.removeprefix(kept)[::-1]
        return _longest(lambda end: encode(kept + end[::-1]), rest, most)

    def answers(self, texts: Sequence[str], lost: list[int] | None = None) -> list[list[int]]:
        """Return the ids of each answer as the assistant's turn, including its end."""
        answers = self._answers(texts)
        for place, ids in enumerate(answers):
            if len(ids) > self._max_lengths[1]:
                answers[place] = _longest(
                    lambda text: self._answers([text])[0], texts[place], self._max_lengths[1]
                )
                if lost is not None:
                    lost.append(len(ids) - len(answers[place]))
        return answers

    def _asked(self, texts: Sequence[str], prefixes: Sequence[PromptPrefix]) -> list[list[int]]:
        """Return the ids of inputs within the template."""
        plain, hidden = [], []
        for text, prefix in zip(texts, prefixes, strict=True):
            if prefix.dialogue:
                text, prefix = _conversation(text, prefix)
            _, system, turns, _ = prefix
            frame, head = self._framed(system, turns)
            plain.append(frame.head + text + frame.tail)
            head = _filled(self.user_text.hide(head), system, turns)
            hidden.append(head + text + self.user_text.hide(frame.tail))
        return self.user_text.encode(plain, hidden)

    def _answers(self, texts: Sequence[str]) -> list[list[int]]:
        _, tail, lead, end = self._answered
        hide = self.user_text.hide
        before = self._template_ids(tail)  # may affect an answer's first token
        answers = self.user_text.encode(
            [tail + lead + text + end for text in texts],
            [hide(tail + lead) + text + hide(end) for text in texts],
        )
        for place, (ids, text) in enumerate(zip(answers, texts, strict=True)):
            if ids[: len(before)] == before:
                answers[place] = ids[len(before) :]
            else:  # the tokenizer merges answer and preceding text
                (answers[place],) = self.user_text.encode(
                    [lead + text + end], [hide(lead) + text + hide(end)]
                )
        return answers

    def _template_ids(self, text: str) -> list[int]:
        return self.user_text.encode([text], [self.user_text.hide(text)])[0] if text else []

    def frame(self, system: str | None = None, turns: Turns = ()) -> Frame:
        """Return the text around inputs with a given system text and earlier turns.

        Raises a `ConfigError` if the template rejects or changes the texts, or does not render a
        conversation as its beginning followed by the rest.
        """
        return self._framed(system, turns)[0]

    def _framed(self, system: str | None, turns: Turns) -> tuple[Frame, str]:
        """Return a frame, and its beginning with placeholders if it has texts."""
        if (found := self._frames.get((system, turns))) is not None:
            return found
        frame = self._rendered(system, turns)
        head = frame.head  # with placeholders for the texts
        if system is not None or turns:
            places = tuple(map(_places_in, range(len(turns))))
            marked = self._rendered(None if system is None else _SYSTEM, places)
            if frame == marked._replace(head=_filled(marked.head, system, turns)):
                head = marked.head
        if len(self._frames) >= 1000:  # dialogues have a frame each
            self._frames.clear()
        return self._frames.setdefault((system, turns), (frame, head))

    def _rendered(self, system: str | None, turns: Turns = ()) -> Frame:
        asked = [] if system is None else [{"role": "system", "content": system}]
        for texts in turns:
            roles = zip(("user", "assistant"), texts, strict=True)
            asked += [{"role": role, "content": text} for role, text in roles]
        asked = [*asked, {"role": "user", "content": _QUESTION}]
        answered = [*asked, {"role": "assistant", "content": _ANSWER}]
        try:
            template = on_day(self.tokenizer.get_chat_template(), self._date)
            render: Any = partial(self.tokenizer.apply_chat_template, chat_template=template)
            prompt = render(asked, tokenize=False, add_generation_prompt=True)
            whole = render(answered, tokenize=False)
        except Exception as error:  # templates may raise any error
            what = " with a system text (data.system, data.descriptions, knowledge of a dialogue)"
            what = "" if system is None else what
            raise ConfigError(
                f"data.template is 'chat', and the chat template cannot be used{what}: "
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
                "data.template is 'chat', but the chat template does not render a conversation as "
                "its beginning followed by the rest, with each text unchanged and once, so "
                f"training and prediction would differ. {_ADVICE}"
            )
        head, tail = prompt.split(_QUESTION)
        lead, end = parts
        if lead.strip():  # such as an empty thought, which the model should not generate
            tail, lead = tail + lead, ""
        return Frame(head, tail, lead, end)


def _conversation(text: str, prefix: PromptPrefix) -> tuple[str, PromptPrefix]:
    """Return the last turn of a dialogue, and a prefix with its knowledge and other turns."""
    dialogue = Dialogue.parse(text.removeprefix(prefix.text))
    turns, question = dialogue.exchanges()
    system = "\n\n".join(filter(None, (prefix.system, dialogue.knowledge))) or None
    return prefix.text + question, prefix._replace(system=system, turns=prefix.turns + turns)


def _places_in(turn: int) -> tuple[str, str]:
    return f"QuestionOfTurn{turn}End", f"AnswerOfTurn{turn}End"


def _filled(head: str, system: str | None, turns: Turns) -> str:
    """Return the beginning of a chat with texts instead of placeholders."""
    head = head.replace(_SYSTEM, (system or "").strip())
    for turn, texts in enumerate(turns):
        for place, text in zip(_places_in(turn), texts, strict=True):
            head = head.replace(place, text.strip())
    return head


def on_day(template: Any, day: str | None) -> Any:
    """Return a chat template with a fixed date, if one is given."""
    if day is None or "strftime_now" not in template:
        return template
    midnight = datetime.datetime.fromisoformat(day)
    codes = [code for letter in "aAbBcdHIjmMpSUwWxXyY" for code in (f"%{letter}", f"%-{letter}")]
    shown = "".join(f" | replace('{code}', '{midnight.strftime(code)}')" for code in codes)
    head = f"{{% macro strftime_now(form) %}}{{{{ form{shown} }}}}{{% endmacro %}}"
    return head + "{{ '' }}" + template


def _longest(encode: Callable[[str], list[int]], text: str, most: int) -> list[int]:
    """Return the ids of the longest beginning of a text with at most ``most`` ids."""
    n = len(text)
    while n and len(encode(text[: n // 2])) > most:
        n //= 2
    n = bisect_right(range(n + 1), most, key=lambda size: len(encode(text[:size]))) - 1
    return encode(text[: max(n, 0)])

"""The form of questions as a chat template, for whoever asks exported weights with transformers.

A form is a text around the question and how both become ids. A chat template says that to
`apply_chat_template` and to whatever serves models. Its prompts are compared with those of
training, id by id. Where a tokenizer joins the line break of a decoder-only model with what stands
before it, they differ, and users have to put the ids together.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from mttl.data.chat_encoder import on_day
from mttl.data.encode import Frame
from mttl.data.prompt_form import PromptForm

# With endings that tokenizers join with a line break.
_PROBES = ("a", "two words", "Is it?", "It is.", "1)", 'so "it is"', "naïve 日本", "two\nlines:")
_LONGEST = 1_000_000


@dataclass(frozen=True)
class QuestionTemplate:
    """How the questions of tasks become ids.

    Attributes:
        tokenizer: A copy of the model's; if `exact`, its chat template makes the prompts of
            training. With several tasks the template takes their name (``task``).
        exact: Whether there is such a template.
        prompt_prefixes: Text before the questions of each task.
        ends: Ids before and after the prompt, for questions without a template.
    """

    tokenizer: PreTrainedTokenizerBase
    exact: bool
    prompt_prefixes: Mapping[str, str]
    ends: tuple[list[int], list[int]]


def question_template(
    tokenizer: PreTrainedTokenizerBase, forms: Mapping[str, PromptForm], *, decoder_only: bool
) -> QuestionTemplate:
    """Return how the questions of some tasks become ids.

    The tokenizer's own chat template is kept where it makes the prompts of training.
    """
    frames: dict[str, Frame] = {}
    prompt_prefixes: dict[str, str] = {}
    wanted: dict[str, list[list[int]]] = {}
    ends: tuple[list[int], list[int]] = [], []
    for task, form in forms.items():
        whole = form.model_copy(update={"max_input_length": _LONGEST})  # nothing is cut
        encoder, prompt_prefix = (
            whole.encoder(tokenizer, decoder_only=decoder_only),
            form.prompt_prefix(task),
        )
        frame = encoder.frame(prompt_prefix.system)
        frames[task] = frame._replace(head=frame.head + prompt_prefix.text)
        prompt_prefixes[task] = encoder.leading_space + prompt_prefix.text
        probes = [prompt_prefix.text + probe for probe in _PROBES]
        wanted[task] = encoder.prompts(probes, [prompt_prefix] * len(probes))
        ends = encoder.prompt_ends
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # what `generate` takes
    day = next(iter(forms.values())).date
    for template in (on_day(tokenizer.chat_template, day), _template(frames), None):
        tokenizer.chat_template = template
        if template and all(_prompts(tokenizer, task) == ids for task, ids in wanted.items()):
            break
    return QuestionTemplate(tokenizer, tokenizer.chat_template is not None, prompt_prefixes, ends)


def _prompts(tokenizer: PreTrainedTokenizerBase, task: str) -> list[list[int]] | None:
    apply: Any = tokenizer.apply_chat_template
    asked = [[{"role": "user", "content": probe}] for probe in _PROBES]
    try:
        return apply(asked, add_generation_prompt=True, task=task)["input_ids"]
    except Exception:  # a template of the tokenizer's own may want anything
        return None


def _template(frames: Mapping[str, Frame]) -> str:
    """Return a template of one question, and maybe its answer."""
    tasks = {task: frame._asdict() for task, frame in frames.items()}
    lines = [
        "{%- set questions = messages | selectattr('role', 'equalto', 'user') | list -%}",
        "{%- if questions | length != 1 -%}",
        "{{- raise_exception('the model answers one question at a time') -}}",
        "{%- endif -%}",
    ]
    if len(tasks) == 1:
        lines.append(f"{{%- set frame = {_literal(next(iter(tasks.values())))} -%}}")
    else:
        problem = _literal(f"give the task (task=...), one of: {', '.join(tasks)}")
        lines += [
            f"{{%- set frames = {_literal(tasks)} -%}}",
            f"{{%- if task not in frames -%}}{{{{- raise_exception({problem}) -}}}}{{%- endif -%}}",
            "{%- set frame = frames[task] -%}",
        ]
    lines += [
        "{%- for message in messages -%}",
        "{%- if message['role'] == 'user' -%}",
        "{{- frame['head'] + message['content'] | trim + frame['tail'] -}}",
        "{%- elif message['role'] == 'assistant' -%}",
        "{{- frame['lead'] + message['content'] | trim + frame['end'] -}}",
        "{%- endif -%}",
        "{%- endfor -%}",
    ]
    return "\n".join(lines)


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # Jinja reads it as Python would

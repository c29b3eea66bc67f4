"""Files that accompany exported weights: tokenizer with chat template, search, and card."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.data.chat_encoder import on_day
from mttl.data.collate import pad_id_of
from mttl.data.encode import Frame
from mttl.data.prompt_form import PromptForm
from mttl.inference.model_card import Card, Kind, QuestionTemplate
from mttl.inference.predictor import Predictor
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import search_file

# With endings that tokenizers join with a line break.
_PROBES = ("a", "two words", "Is it?", "It is.", "1)", 'so "it is"', "naïve 日本", "two\nlines:")
_LONGEST = 1_000_000


def question_template(
    tokenizer: PreTrainedTokenizerBase, forms: Mapping[str, PromptForm], *, decoder_only: bool
) -> QuestionTemplate:
    """Return how the questions of some tasks become ids.

    The tokenizer's own chat template is kept where it makes the prompts of training, id by id.
    Where a tokenizer joins the line break of a decoder-only model with what stands before it, no
    template can, and users have to put the ids together.
    """
    frames: dict[str, Frame] = {}
    prompt_prefixes: dict[str, str] = {}
    wanted: dict[str, list[list[int]]] = {}
    ends: tuple[list[int], list[int]] = [], []
    for task, form in forms.items():
        whole = form.model_copy(update={"max_input_length": _LONGEST})  # nothing is cut
        encoder = whole.encoder(tokenizer, decoder_only=decoder_only)
        prompt_prefix = form.prompt_prefix(task)
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


@dataclass(frozen=True, kw_only=True)
class PromptExport:
    """The prompt format of exported weights: tokenizer, prompt form by task, and search.

    ``generation`` is the model's own generation config; ``search`` the settings of
    `mttl.models.generation.search_settings`; ``dtype`` that of the weights as they answer.
    """

    tokenizer: PreTrainedTokenizerBase
    forms: Mapping[str, PromptForm]
    decoder_only: bool
    generation: GenerationConfig
    search: Mapping[str, Any]
    dtype: str

    @classmethod
    def of(cls, run: Predictor, tasks: Sequence[str]) -> "PromptExport":
        """Return how a model is asked for some of its tasks."""
        backbone: Any = run.model.backbone
        return cls(
            tokenizer=run.tokenizer,
            forms=dict.fromkeys(tasks, run.form),
            decoder_only=is_decoder_only(backbone),
            generation=backbone.generation_config,
            search=run.search,
            dtype=str(backbone.dtype).removeprefix("torch."),
        )

    def write(self, folder: Path, kind: Kind, **described: Any) -> None:
        """Write the tokenizer, ``generation_config.json`` and the card into a folder.

        ``described`` are the attributes of `Card` that say what the weights are.
        """
        template = question_template(self.tokenizer, self.forms, decoder_only=self.decoder_only)
        if not template.exact:  # nor one that was copied
            (folder / "chat_template.jinja").unlink(missing_ok=True)
        template.tokenizer.save_pretrained(folder)
        pad_id = pad_id_of(self.tokenizer)
        search_file(self.generation, self.search, pad_id).save_pretrained(folder)
        described |= {"tasks": tuple(self.forms), "template": template, "dtype": self.dtype}
        Card(kind=kind, decoder_only=self.decoder_only, **described).write(folder)

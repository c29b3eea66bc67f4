"""Files next to exported weights: model card (README.md), tokenizer and generation settings.

The card describes the weights, their scores, and how to use them.
"""

import copy
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.data.chat_encoder import on_day
from mttl.data.collate import pad_id_of
from mttl.data.encode import Frame
from mttl.data.prompt_form import PromptForm
from mttl.inference.predictor import Predictor
from mttl.io.errors import CheckpointError
from mttl.io.files import write_text
from mttl.io.reading import read_table
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import search_file
from mttl.runtime.version import VERSION
from mttl.tasks.control import code_text

_Generating = Literal["model", "lora", "loras", "poly", "bottleneck", "bottlenecks", "skills"]
Kind = Literal[_Generating, "TOKEN_CLS", "SEQ_CLS"]
# By PEFT's type of a task, the class of transformers and its pipeline.
_CLASSIFIERS = {
    "TOKEN_CLS": ("AutoModelForTokenClassification", "token-classification"),
    "SEQ_CLS": ("AutoModelForSequenceClassification", "text-classification"),
}
_LIBRARIES = {"model": "transformers", "skills": "mttl"}
_LIBRARIES |= dict.fromkeys(("bottleneck", "bottlenecks"), "adapter-transformers")
QUESTION = "your question"


@dataclass(frozen=True)
class QuestionTemplate:
    """Conversion of inputs to ids.

    If ``exact``, the tokenizer (a copy) has a chat template that reproduces the prompts of
    training. With several tasks the template takes the argument ``task``.
    """

    tokenizer: PreTrainedTokenizerBase
    exact: bool
    prompt_prefixes: Mapping[str, str]  # text before the inputs of each task
    ends: tuple[list[int], list[int]]  # ids before and after a prompt without a template


@dataclass(frozen=True, kw_only=True)
class Card:
    """Content of a model card; the card of a run has no ``dtype`` and ``template``."""

    kind: Kind
    place: str  # path of the folder, or its name on the hub
    base: str  # path or name of the backbone
    about: str  # description in one sentence
    tasks: Sequence[str]  # in the order of ids
    decoder_only: bool
    dtype: str = "auto"
    template: QuestionTemplate | None = None
    scores: Sequence[dict[str, str]] = ()  # rows of ``results.csv``
    inputs: Mapping[str, str] = field(default_factory=dict)  # templates of inputs by task
    codes: Mapping[str, str] = field(default_factory=dict)  # highest codes of controlled tasks
    vllm_rank: int = 0  # of ``--max-lora-rank``; 0 if the adapters are not for vLLM
    raw: bool = False  # whether tasks are raw text, so that the card shows no example

    def write(self, folder: Path) -> None:
        """Write ``README.md`` into a folder."""
        write_text(folder / "README.md", self.text())

    def text(self) -> str:
        """Return the text of the card."""
        usual = "text-generation" if self.decoder_only else "text2text-generation"
        head = {
            "library_name": _LIBRARIES.get(self.kind, "peft"),
            "pipeline_tag": _CLASSIFIERS.get(self.kind, ("", usual))[1],
            "tags": ["mttl", "multi-task"],
        }
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.base) and not Path(self.base).is_dir():
            head["base_model"] = self.base
        if self.raw:
            del head["pipeline_tag"]
        lines = [f"{name}: {json.dumps(value)}" for name, value in head.items()]
        parts = ["\n".join(["---", *lines, "---"]), f"# {Path(self.place).name}", self.about]
        parts += [f"Base model: `{self.base}`", self._scores()]
        if not self.raw:
            parts += ["## Usage", f"```python\n{self.code()}\n```", self._form(), self._vllm()]
        parts.append(f"Written by mttl {VERSION}.")
        return "\n\n".join(part for part in parts if part) + "\n"

    def code(self) -> str:
        """Return example code that answers one input of the first task."""
        task, place = self.tasks[0], _quoted(self.place)
        if self.kind in _CLASSIFIERS:
            auto, pipeline = _CLASSIFIERS[self.kind]
            more = ', aggregation_strategy="first"' * (self.kind == "TOKEN_CLS")
            return (
                "from peft import PeftModel\n"
                f"from transformers import AutoConfig, {auto}, AutoTokenizer, pipeline\n\n"
                f"config = AutoConfig.from_pretrained({place})\n"
                f"base = {auto}.from_pretrained({_quoted(self.base)}, config=config)\n"
                f"model = PeftModel.from_pretrained(base, {place}).merge_and_unload()\n"
                f"tokenizer = AutoTokenizer.from_pretrained({place})\n"
                f'answer = pipeline("{pipeline}", model=model, tokenizer=tokenizer{more})\n'
                f"print(answer({_quoted(QUESTION)}))"
            )
        if self.template is None:
            return (
                f"import mttl\n\nrun = mttl.from_pretrained({place})\n"
                f"print(run.predict({_quoted(task)}, [{self._input(task)}])[0])"
            )
        auto = "AutoModelForCausalLM" if self.decoder_only else "AutoModelForSeq2SeqLM"
        peft, first = auto.replace("Auto", "AutoPeft", 1), _quoted(f"{self.place}/{task}")
        others = [(_quoted(f"{self.place}/{name}"), _quoted(name)) for name in self.tasks[1:2]]
        given, dtype = ["**inputs"], f'dtype="{self.dtype}"'
        library, names = [], [auto, "AutoTokenizer", "GenerationConfig"]
        load = [f"model = {auto}.from_pretrained({_quoted(self.base)}, {dtype})"]
        if self.kind == "model":
            names.remove("GenerationConfig")
            load = [f"model = {auto}.from_pretrained({place}, {dtype})"]
        elif self.kind == "loras":
            library = ["from peft import PeftModel"]
            load += [
                f"model = PeftModel.from_pretrained(model, {first}, adapter_name={_quoted(task)})",
                *(f"model.load_adapter({path}, adapter_name={name})" for path, name in others),
                f"model.set_adapter({_quoted(task)})",
            ]
        elif self.kind.startswith("bottleneck"):
            library = ["import adapters"]
            chosen = first if self.kind == "bottlenecks" else place
            load += [
                "adapters.init(model)",
                f"model.load_adapter({chosen}, set_active=True, use_safetensors=True)",
            ]
        else:
            library = [f"from peft import {peft}"]
            names.remove(auto)
            load = [f"model = {peft}.from_pretrained({place}, {dtype})"]
        lines = [*library, f"from transformers import {', '.join(names)}", ""]
        lines.append(f"tokenizer = AutoTokenizer.from_pretrained({place})")
        if self.kind != "model":
            given.append("generation_config=search")
            lines.append(f"search = GenerationConfig.from_pretrained({place})")
        lines += load
        if self.kind == "poly":
            given.append("task_ids=torch.tensor([0])")
        if self.kind == "poly" or not self.template.exact:
            lines.insert(0, "import torch")
        lines += self._prompt_section(task)
        generated = f"model.generate({', '.join(given)})[0"
        generated += ', inputs["input_ids"].shape[1] :]' if self.decoder_only else "]"
        shown = "print(tokenizer.decode(answer, skip_special_tokens=True).strip())"
        return "\n".join([*lines, f"answer = {generated}", shown])

    def _vllm(self) -> str:
        """Return the command of vLLM that serves the tasks."""
        if not self.vllm_rank:
            return ""
        assert self.template is not None
        command = ["vllm", "serve", self.base, "--tokenizer", self.place]
        command += ["--generation-config", self.place]
        asked = 'completions`, with the ids of the code above as "prompt"'
        if self.template.exact:
            command += ["--chat-template", f"{self.place}/chat_template.jinja"]
            named = ', "chat_template_kwargs": {"task": TASK}'
            asked = "chat/completions`" + named * (len(self.template.prompt_prefixes) > 1)
        command += ["--enable-lora", "--max-lora-rank", str(self.vllm_rank)]
        command += ["--max-loras", str(len(self.tasks)), "--lora-modules"]
        command += [f"{task}={self.place}/{task}" for task in self.tasks]
        return (
            f"## Serve with vLLM\n\n```bash\n{shlex.join(command)}\n```\n\n"
            f'Requests: `/v1/{asked}, "model": TASK, "temperature": 0. vLLM computes in 16 bits '
            "without beams, so answers can differ. Fewer `--max-loras` need less memory."
        )

    def _prompt_section(self, task: str) -> list[str]:
        assert self.template is not None
        if self.template.exact:
            named = f", task={_quoted(task)}" if len(self.template.prompt_prefixes) > 1 else ""
            return [
                f'question = [{{"role": "user", "content": {self._input(task)}}}]',
                'settings = {"return_tensors": "pt", "return_dict": True}',
                "inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True"
                f"{named}, **settings)",
            ]
        before, after = self.template.ends
        return [
            f"question = {_quoted(self.template.prompt_prefixes[task])} + {self._input(task)}",
            'settings = {"add_special_tokens": False, "split_special_tokens": True}',
            'ids = tokenizer(question, **settings)["input_ids"]',
            f"ids = torch.tensor([{before} + ids + {after}])",
            'inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}',
        ]

    def _input(self, task: str) -> str:
        """Return code for an input: that of a record, if its template has no filters."""
        template = self.inputs.get(task, "")
        fields = re.findall(r"\{(.*?)\}", template)
        if not fields or not all(map(str.isidentifier, fields)):
            return _quoted(QUESTION)
        return f"{_quoted(template)}.format(**{_quoted(dict.fromkeys(fields, QUESTION))})"

    def _form(self) -> str:
        """Return a description of the prompts, and of inputs made of records."""
        made = "\n".join(f"- `{task}`: `{text}`" for task, text in self.inputs.items())
        inputs = f"\n\nInputs are made of records by these templates:\n\n{made}" if made else ""
        codes = [
            f"\n\nPrompts of `{task}` have the codes `{code.strip()}`: the best answers by these "
            "metrics. The model also knows lower numbers, down to 1."
            for task, code in self.codes.items()
        ]
        return "".join([self._prompts(), inputs, *codes])

    def _prompts(self) -> str:
        if self.template is None:
            return f"Tasks: {', '.join(f'`{task}`' for task in self.tasks)}."
        prompt_prefixes = self.template.prompt_prefixes
        if self.template.exact:
            text = "The tokenizer's chat template formats prompts as in training"
            text += "; set `task` to one of the tasks below." if len(prompt_prefixes) > 1 else "."
        else:
            text = (
                "The tokenizer merges the line break after an input with the text before it, but "
                "the model was trained with separate tokens. A chat template cannot express this, "
                "so the code joins the ids."
            )
        if len(prompt_prefixes) == 1:
            return text
        rows = [f"| {self.tasks.index(t)} | `{t}` | `{o}` |" for t, o in prompt_prefixes.items()]
        head = ["| id | task | prefix of its inputs |", "|---:|---|---|"]
        return "\n".join([text, "", *head, *rows])

    def _scores(self) -> str:
        head = ["| task | split | metric | score | rows |", "|---|---|---|---:|---:|"]
        rows = [
            f"| {row['task']} | {row['split']} | {row['metric']} | {float(row['score']):.4f} | "
            f"{row['n']} |"
            for row in self.scores
        ]
        return "\n".join([*head, *rows]) if rows else ""


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # a literal in Python and in Jinja


def scores_of(run: str | Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of a run on some tasks, with their mean if there are several."""
    for folder in (Path(run), Path(run).parent):
        results = folder / "results.csv"
        if results.is_file():
            columns = ["task", "split", "metric", "score", "n"]
            rows = read_table(results, CheckpointError, columns)
            wanted = {*tasks, "mean"} if len(tasks) > 1 else {*tasks}
            return [row for row in rows if row["task"] in wanted]
    return []


# Endings that tokenizers may merge with a line break.
_PROBES = ("a", "two words", "Is it?", "It is.", "1)", 'so "it is"', "naïve 日本", "two\nlines:")
_LONGEST = 1_000_000


def question_template(
    tokenizer: PreTrainedTokenizerBase, forms: Mapping[str, PromptForm], *, decoder_only: bool
) -> QuestionTemplate:
    """Return the conversion of inputs to ids for some tasks.

    The tokenizer's own chat template is kept if it reproduces the training prompts exactly. If a
    tokenizer merges a decoder-only model's line break with the preceding text, no template can, and
    the ids have to be joined by code.
    """
    frames: dict[str, Frame] = {}
    prompt_prefixes: dict[str, str] = {}
    wanted: dict[str, list[list[int]]] = {}
    ends: tuple[list[int], list[int]] = [], []
    for task, form in forms.items():
        whole = form.model_copy(update={"max_input_length": _LONGEST})  # no truncation
        encoder = whole.encoder(tokenizer, decoder_only=decoder_only)
        prompt_prefix = form.prompt_prefix(task)
        frame = encoder.frame(*prompt_prefix[1:3])
        frames[task] = frame._replace(head=frame.head + prompt_prefix.text)
        prompt_prefixes[task] = encoder.leading_space + prompt_prefix.text
        probes = [prompt_prefix.text + probe for probe in _PROBES]
        wanted[task] = encoder.prompts(probes, [prompt_prefix] * len(probes))
        ends = encoder.prompt_ends
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # inputs of `generate`
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
    except Exception:  # other templates may need any arguments
        return None


def _template(frames: Mapping[str, Frame]) -> str:
    """Return a chat template for one input, optionally with its answer."""
    tasks = {task: frame._asdict() for task, frame in frames.items()}
    lines = [
        "{%- set questions = messages | selectattr('role', 'equalto', 'user') | list -%}",
        "{%- if questions | length != 1 -%}",
        "{{- raise_exception('the model answers one input at a time') -}}",
        "{%- endif -%}",
    ]
    if len(tasks) == 1:
        lines.append(f"{{%- set frame = {_quoted(next(iter(tasks.values())))} -%}}")
    else:
        problem = _quoted(f"set the task (task=...) to one of: {', '.join(tasks)}")
        lines += [
            f"{{%- set frames = {_quoted(tasks)} -%}}",
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


@dataclass(frozen=True, kw_only=True)
class PromptExport:
    """Prompt format of exported weights: tokenizer, prompt forms by task, generation settings.

    ``generation`` is the model's generation config, ``search`` the settings from
    `mttl.models.generation.search_settings`, and ``dtype`` the type of the weights.
    """

    tokenizer: PreTrainedTokenizerBase
    forms: Mapping[str, PromptForm]
    decoder_only: bool
    generation: GenerationConfig | None  # None of some encoders
    search: Mapping[str, Any]
    dtype: str

    @classmethod
    def of(cls, run: Predictor, tasks: Sequence[str]) -> "PromptExport":
        """Return the prompt format of some tasks of a model."""
        backbone: Any = run.model.backbone
        return cls(
            tokenizer=run.tokenizer,
            forms=dict.fromkeys(tasks, run.form),
            decoder_only=is_decoder_only(backbone),
            generation=getattr(backbone, "generation_config", None),
            search=run.search,
            dtype=str(backbone.dtype).removeprefix("torch."),
        )

    def write(self, folder: Path, kind: Kind, **described: Any) -> None:
        """Write the tokenizer, ``generation_config.json`` and the card into a folder.

        ``described`` are the attributes of `Card` that describe the weights.
        """
        described |= {"kind": kind, "tasks": tuple(self.forms), "dtype": self.dtype}
        raw = any(form.texts for form in self.forms.values())
        if kind in _CLASSIFIERS or raw:
            self.tokenizer.save_pretrained(folder)
            Card(decoder_only=self.decoder_only, raw=raw, **described).write(folder)
            return
        template = question_template(self.tokenizer, self.forms, decoder_only=self.decoder_only)
        if not template.exact:  # also removes a copied template
            (folder / "chat_template.jinja").unlink(missing_ok=True)
        template.tokenizer.save_pretrained(folder)
        pad_id = pad_id_of(self.tokenizer)
        assert self.generation is not None  # encoders lack it; they have heads or raw text
        search_file(self.generation, self.search, pad_id).save_pretrained(folder)
        of_tasks = [(task, form.task_templates.get(task)) for task, form in self.forms.items()]
        described["inputs"] = {task: one.input for task, one in of_tasks if one}
        edges = {task: form.edges(task) for task, form in self.forms.items()}
        described["codes"] = {task: code_text(own) for task, own in edges.items() if own}
        Card(decoder_only=self.decoder_only, template=template, **described).write(folder)

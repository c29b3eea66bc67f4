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

from jinja2 import Environment
from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.data.chat_encoder import on_day
from mttl.data.collate import pad_id_of
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
        classifier, pipeline = _CLASSIFIERS.get(self.kind, ("", ""))
        usual = "text-generation" if self.decoder_only else "text2text-generation"
        head = {
            "library_name": _LIBRARIES.get(self.kind, "peft"),
            "pipeline_tag": pipeline or usual,
            "tags": ["mttl", "multi-task"],
        }
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.base) and not Path(self.base).is_dir():
            head["base_model"] = self.base
        if self.raw:
            del head["pipeline_tag"]
        page = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        page.filters["quoted"] = _quoted
        return page.from_string(_read("card.md.jinja")).render(
            card=self,
            title=Path(self.place).name,
            head=head,
            classifier=classifier,
            question=QUESTION,
            input=self._input(),
            several=self.template is not None and len(self.template.prompt_prefixes) > 1,
            command=self._vllm(),
            version=VERSION,
        )

    def _vllm(self) -> str:
        """Return the command of vLLM that serves the tasks."""
        command = ["vllm", "serve", self.base, "--tokenizer", self.place]
        command += ["--generation-config", self.place]
        if self.template is not None and self.template.exact:
            command += ["--chat-template", f"{self.place}/chat_template.jinja"]
        command += ["--enable-lora", "--max-lora-rank", str(self.vllm_rank)]
        command += ["--max-loras", str(len(self.tasks)), "--lora-modules"]
        return shlex.join([*command, *(f"{task}={self.place}/{task}" for task in self.tasks)])

    def _input(self) -> str:
        """Return code for an input of the first task: a record, if its template has no filters."""
        template = self.inputs.get(self.tasks[0], "")
        fields = re.findall(r"\{(.*?)\}", template)
        if not fields or not all(map(str.isidentifier, fields)):
            return _quoted(QUESTION)
        return f"{_quoted(template)}.format(**{_quoted(dict.fromkeys(fields, QUESTION))})"


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # a literal in Python and in Jinja


def scores_of(run: str | Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of a run on some tasks, with their mean if there are several."""
    for folder in (Path(run), Path(run).parent):
        results = folder / "results.csv"
        if results.is_file():
            rows = read_table(results, CheckpointError, ["task", "split", "metric", "score", "n"])
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
    frames: dict[str, dict[str, Any]] = {}
    prompt_prefixes: dict[str, str] = {}
    wanted: dict[str, list[list[int]]] = {}
    ends: tuple[list[int], list[int]] = [], []
    for task, form in forms.items():
        whole = form.model_copy(update={"max_input_length": _LONGEST})  # no truncation
        encoder = whole.encoder(tokenizer, decoder_only=decoder_only)
        prompt_prefix = form.prompt_prefix(task)
        frame = encoder.frame(*prompt_prefix[1:3])
        frames[task] = frame._replace(head=frame.head + prompt_prefix.text)._asdict()
        prompt_prefixes[task] = encoder.leading_space + prompt_prefix.text
        probes = [prompt_prefix.text + probe for probe in _PROBES]
        wanted[task] = encoder.prompts(probes, [prompt_prefix] * len(probes))
        ends = encoder.prompt_ends
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # inputs of `generate`
    day = next(iter(forms.values())).date
    # For one input, optionally with its answer.
    made = f"{{%- set frames = {_quoted(frames)} -%}}\n{_read('chat.jinja')}"
    for template in (on_day(tokenizer.chat_template, day), made, None):
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

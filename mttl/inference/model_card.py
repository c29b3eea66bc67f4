"""The card of exported weights, README.md: what they are, their scores, and how to ask them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from mttl.io.errors import CheckpointError
from mttl.io.files import write_text
from mttl.io.reading import read_table
from mttl.runtime.version import VERSION

Kind = Literal["model", "lora", "loras", "poly", "bottleneck", "bottlenecks", "skills"]
_LIBRARIES = {"model": "transformers", "skills": "mttl"}
_LIBRARIES |= dict.fromkeys(("bottleneck", "bottlenecks"), "adapter-transformers")
QUESTION = "your question"


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


@dataclass(frozen=True, kw_only=True)
class Card:
    """The content of a card.

    Attributes:
        kind: A model of transformers, an adapter of PEFT or AdapterHub (or several over one base),
            or a run, which has no ``dtype`` and ``template``.
        place: Path of the folder, or its name on the hub.
        base: Path or name of the backbone.
        about: Description of the weights in one sentence.
        tasks: Names of the tasks in the order of their ids.
        scores: Rows of ``results.csv``.
    """

    kind: Kind
    place: str
    base: str
    about: str
    tasks: Sequence[str]
    decoder_only: bool
    dtype: str = "auto"
    template: QuestionTemplate | None = None
    scores: Sequence[dict[str, str]] = field(default=())

    def write(self, folder: Path) -> None:
        """Write ``README.md`` into a folder."""
        write_text(folder / "README.md", self.text())

    def text(self) -> str:
        """Return the card."""
        head = {
            "library_name": _LIBRARIES.get(self.kind, "peft"),
            "pipeline_tag": "text-generation" if self.decoder_only else "text2text-generation",
            "tags": ["mttl", "multi-task"],
        }
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.base) and not Path(self.base).is_dir():
            head["base_model"] = self.base
        lines = [f"{name}: {json.dumps(value)}" for name, value in head.items()]
        parts = ["\n".join(["---", *lines, "---"]), f"# {Path(self.place).name}", self.about]
        parts += [f"Base model: `{self.base}`", self._scores()]
        parts += ["## How to ask", f"```python\n{self.code()}\n```", self._form()]
        parts += [f"Written by mttl {VERSION}."]
        return "\n\n".join(part for part in parts if part) + "\n"

    def code(self) -> str:
        """Return the lines that answer one question of the first task."""
        task, place = self.tasks[0], _quoted(self.place)
        if self.template is None:
            return (
                f"import mttl\n\nrun = mttl.from_pretrained({place})\n"
                f"print(run.predict({_quoted(task)}, [{_quoted(QUESTION)}])[0])"
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

    def _prompt_section(self, task: str) -> list[str]:
        assert self.template is not None
        if self.template.exact:
            named = f", task={_quoted(task)}" if len(self.template.prompt_prefixes) > 1 else ""
            return [
                f'question = [{{"role": "user", "content": {_quoted(QUESTION)}}}]',
                'settings = {"return_tensors": "pt", "return_dict": True}',
                "inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True"
                f"{named}, **settings)",
            ]
        before, after = self.template.ends
        return [
            f"question = {_quoted(self.template.prompt_prefixes[task])} + {_quoted(QUESTION)}",
            'settings = {"add_special_tokens": False, "split_special_tokens": True}',
            'ids = tokenizer(question, **settings)["input_ids"]',
            f"ids = torch.tensor([{before} + ids + {after}])",
            'inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}',
        ]

    def _form(self) -> str:
        """Describe the prompts."""
        if self.template is None:
            return f"Its tasks: {', '.join(f'`{task}`' for task in self.tasks)}."
        prompt_prefixes = self.template.prompt_prefixes
        if self.template.exact:
            text = "The chat template of the tokenizer asks as in training"
            text += "; `task` names one of the tasks below." if len(prompt_prefixes) > 1 else "."
        else:
            text = (
                "The tokenizer joins the line break after a question with what stands before it, "
                "and the model was trained with the break alone: no template can say that, so the "
                "ids are put together."
            )
        if len(prompt_prefixes) == 1:
            return text
        rows = [f"| {self.tasks.index(t)} | `{t}` | `{o}` |" for t, o in prompt_prefixes.items()]
        head = ["| id | task | before its questions |", "|---:|---|---|"]
        return "\n".join([text, "", *head, *rows])

    def _scores(self) -> str:
        head = ["| task | split | metric | score | rows |", "|---|---|---|---:|---:|"]
        rows = [
            f"| {row['task']} | {row['split']} | {row['metric']} | {float(row['score']):.4f} | "
            f"{row['n']} |"
            for row in self.scores
        ]
        return "\n".join([*head, *rows]) if rows else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a literal of Python, too


def scores_of(run: str | Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a run scored on some tasks, and in the mean if it knows several."""
    for folder in (Path(run), Path(run).parent):
        results = folder / "results.csv"
        if results.is_file():
            columns = ["task", "split", "metric", "score", "n"]
            rows = read_table(results, CheckpointError, columns)
            wanted = {*tasks, "mean"} if len(tasks) > 1 else {*tasks}
            return [row for row in rows if row["task"] in wanted]
    return []

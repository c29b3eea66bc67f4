"""The section `data`: the tasks, and how their rows become batches."""

import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt

from mttl.config.plugin_section import plugin_name
from mttl.config.section import Section, once
from mttl.plugins.classes import METRICS


class Sampler(Section):
    """How tasks and rows are drawn."""

    refuses: ClassVar = {
        "temperature and kind != temperature": "temperature ({temperature}) is for kind temperature"
    }
    kind: Literal["proportional", "uniform", "temperature", "homogeneous"] = "proportional"
    """Every row once per epoch (`proportional`); each row's task drawn with equal probability
    (`uniform`), or ∝ size^(1 / temperature); or every batch of one task, drawn by size."""
    temperature: PositiveFloat | None = None
    """1 draws by size; large values draw all tasks equally often. 2 by default."""


TaskPrefix = Literal["name", "code", "none"]
_TaskPrefix = Literal[TaskPrefix, "auto"]
Truncate = Literal["start", "end"]
Template = Literal["plain", "chat"]


def _day(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


# YAML reads the name of a task that is called 123 as a number.
TaskName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


class Data(Section):
    """The tasks, and how their rows become batches."""

    asks: ClassVar = {"packs": "packed_length", "counts_rows": "global_batch_size"}
    refuses: ClassVar = {
        **dict.fromkeys(
            ("not dir and not tasks", "dir and tasks"),
            "dir must name the folder of a gym, or be null with tasks, a file of custom tasks",
        ),
        **{
            f"{name} and template != chat": f"{name} is a part of chats: set template: chat"
            for name in ("system", "date")
        },
        "validation = dev and split = train+dev": "validation 'dev' would score rows that split "
        "'train+dev' trains on; set validation: none or split: train",
        "evaluate = dev and split = train+dev": "evaluate 'dev' would score rows that split "
        "'train+dev' trains on; set evaluate: [test] or split: train",
        "length_window and sampler.kind = homogeneous": "length_window must be 0 with the "
        "homogeneous sampler",
        "token_budget and sampler.kind = homogeneous": "token_budget ({token_budget}) is not for "
        "the homogeneous sampler, whose batches are counted in rows",
        "token_budget < packed_length": "token_budget ({token_budget}) must be at least "
        "packed_length ({packed_length}), the tokens of one sequence",
        **{
            f"{name} < longest_row": f"{name} ({{{name}}}) must be at least {{self.longest_row}}, "
            "the tokens of the longest row (max_input_length + max_output_length)"
            for name in ("token_budget", "packed_length")
        },
        **{
            f"{name} and global_batch_size": f"{name} ({{{name}}}) cannot be with "
            "global_batch_size ({global_batch_size}), which counts rows"
            for name in ("token_budget", "packed_length")
        },
    }
    dir: str | None = None
    """Folder of the gym: `<task>/<task>_<k>_<sample>_<split>.tsv`, or `.jsonl`."""
    tasks: str | None = None
    """In place of `dir`: YAML file of custom tasks, whose files are converted into the cache."""
    partition: str | dict[str, list[TaskName]] = "auto"
    """JSON file with the lists train, dev and test of tasks, or these lists; `auto`: every task of
    `tasks` on its `side`, or without `tasks` every task of the gym in train."""
    samples: Annotated[list[int], Field(min_length=1), AfterValidator(once)] = [100]
    """Which few-shot samples of every task. Several of CrossFit overlap: a development row of one
    may be a training row of another, so that `dev` flatters a little."""
    split: Literal["train", "train+dev"] = "train"
    """Rows to train on."""
    validation: Literal["dev", "none"] = "dev"
    """Rows to validate on while training; the best checkpoint is chosen by them."""
    evaluate: Annotated[list[Literal["dev", "test"]], AfterValidator(once)] = ["dev", "test"]
    """Splits that are scored after training."""
    sampler: Sampler = Sampler()
    """How rows are drawn."""
    length_window: Annotated[int, Field(ge=0)] = 0
    """Sort the rows of this many batches by length, so that batches need little padding."""
    batch_size: PositiveInt = 32
    """Training rows per step and process; the most of them with `token_budget`, and the most at
    once with `global_batch_size`."""
    token_budget: PositiveInt | None = None
    """Most tokens of a training batch and process, padding included: batches then have many short
    rows or few long ones. The loss stays the mean over the answers' tokens of a step."""
    packed_length: PositiveInt | None = None
    """Put the rows of a training batch one after another into sequences of at most so many tokens,
    in which none sees another (decoder-only backbones); none gives every row its own."""
    global_batch_size: PositiveInt | None = None
    """Training rows per optimizer step of all processes together: how many rows each computes, and
    in how many batches, follows from the number of processes, so that any number of them trains the
    same run."""
    eval_batch_size: PositiveInt = 64
    """Most rows per batch of validation and scoring."""
    max_input_length: PositiveInt = 512
    """Most tokens of an input."""
    max_output_length: PositiveInt = 64
    """Most tokens of an answer."""
    truncate: Truncate = "end"
    """Which side of an input is cut that is longer; what stands before it (`prefix`,
    `descriptions`) stays."""
    prefix: _TaskPrefix = "name"
    """Task prefix of every input: `[name]` of the task, its `[code]` (six letters that do not
    reveal the name), or `none`. `auto` prepends the name only if the router cannot identify the
    task: shared, average, random, smear, retrieval, none; expert if two rows of its matrix have
    equal shares; metadata if two tasks have the same `router.factors`. A run records the choice."""
    descriptions: bool = False
    """Put the description from TASKS.csv before every input; in a chat it is system text."""
    template: Template = "plain"
    """How an input is asked: as it is, or as what a user says in a `chat`, by the chat template of
    the tokenizer (decoder-only backbones). The answer is the assistant's, end of turn included."""
    system: Annotated[str, Field(min_length=1)] | None = None
    """System text of every chat; the description of the task follows it."""
    date: Annotated[str, AfterValidator(_day)] | None = None
    """The day, as YYYY-MM-DD, that chat templates show which show one: by default that on which
    training starts. A run keeps it."""
    metrics: dict[TaskName, Annotated[str, AfterValidator(plugin_name(METRICS))]] = {}
    """Metrics of tasks in the place of those in TASKS.csv: one of CrossFit's, or `module:Class`."""
    expert_matrix: str | None = None
    """CSV file of the skills that a person would give each task: the matrix of an expert router
    that names none. `skills.n_skills: per_column` then fits."""
    skip_missing: bool = False
    """Leave out tasks of the partition that the gym lacks, instead of an error."""
    max_rows: PositiveInt | None = None
    """Read only so many rows of every file, spread evenly, for quick trials."""
    max_eval_rows: PositiveInt | None = None
    """The same for validation and scoring alone; training reads all."""
    n_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that collate; 0 collates in the training process."""
    cache_dir: str | None = None
    """Where tokenised rows and converted tasks are kept; by default `<run.dir>/.cache`."""

    @property
    def longest_row(self) -> int:
        """Most tokens of a row."""
        return self.max_input_length + self.max_output_length

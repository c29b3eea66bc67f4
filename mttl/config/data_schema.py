"""Section `data`: the tasks, their files and batches."""

from datetime import date
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt

from mttl.config.plugin_section import plugin_name
from mttl.config.section import Section, once
from mttl.plugins.classes import METRICS


class Sampler(Section):
    """Sampling of tasks and rows."""

    refuses: ClassVar = {
        "temperature and kind != temperature": "temperature ({temperature}) is for kind temperature"
    }
    kind: Literal["proportional", "uniform", "temperature", "homogeneous"] = "proportional"
    """`proportional`: every row once per epoch; `uniform`: tasks with equal probability;
    `temperature`: tasks ∝ size^(1 / temperature); `homogeneous`: one task per batch, by size."""
    temperature: PositiveFloat | None = None
    """Temperature, by default 2; 1 samples by size, large values sample tasks equally often."""


TaskPrefix = Literal["name", "code", "none"]
Truncate = Literal["start", "end"]
Template = Literal["plain", "chat"]
Day = Annotated[str, AfterValidator(lambda text: date.fromisoformat(text).isoformat())]
# YAML parses a task name such as 123 as an integer.
TaskName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


class Data(Section):
    """Tasks, files and batches."""

    asks: ClassVar = {"packs": "packed_length", "counts_rows": "global_batch_size"}
    refuses: ClassVar = {
        **dict.fromkeys(
            ("not dir and not tasks", "dir and tasks"),
            "set exactly one of dir (a folder of tasks in CrossFit's format) and tasks (a file of "
            "custom tasks)",
        ),
        **{
            f"{name} and template != chat": f"{name} is only used in chats; set template: chat or "
            "remove it"
            for name in ("system", "date")
        },
        "validation = dev and split = train+dev": "validation 'dev' would score rows that split "
        "'train+dev' trains on; set validation: none or split: train",
        "evaluate = dev and split = train+dev": "evaluate 'dev' would score rows that split "
        "'train+dev' trains on; set evaluate: [test] or split: train",
        "length_window and sampler.kind = homogeneous": "length_window must be 0 with the "
        "homogeneous sampler",
        "token_budget and sampler.kind = homogeneous": "token_budget ({token_budget}) does not "
        "work with the homogeneous sampler, which counts rows; remove it or use another sampler",
        "token_budget < packed_length": "token_budget ({token_budget}) must be at least "
        "packed_length ({packed_length}), the tokens of one sequence",
        **{
            f"{name} < longest_row": f"{name} ({{{name}}}) must be at least {{self.longest_row}}, "
            "the tokens of the longest row (max_input_length + max_output_length)"
            for name in ("token_budget", "packed_length")
        },
        **{
            f"{name} and global_batch_size": f"{name} ({{{name}}}) cannot be combined with "
            "global_batch_size ({global_batch_size}), which counts rows; remove one of them"
            for name in ("token_budget", "packed_length")
        },
    }
    dir: str | None = None
    """Folder of tasks in CrossFit's format: `<task>/<task>_<k>_<sample>_<split>.tsv` or
    `.jsonl`."""
    tasks: str | None = None
    """YAML file of custom tasks (instead of `dir`); the data are converted into the cache."""
    partition: str | dict[str, list[TaskName]] = "auto"
    """JSON file with task lists train, dev and test, or these lists; `auto`: the `side` of each
    task in `tasks`, or with `dir` all tasks in train."""
    samples: Annotated[list[int], Field(min_length=1), AfterValidator(once)] = [100]
    """Few-shot samples of each task. Some CrossFit samples overlap: a development row of one may be
    a training row of another, which raises dev scores slightly."""
    split: Literal["train", "train+dev"] = "train"
    """Splits to train on."""
    validation: Literal["dev", "none"] = "dev"
    """Split for validation during training, which selects the best checkpoint."""
    evaluate: Annotated[list[Literal["dev", "test"]], AfterValidator(once)] = ["dev", "test"]
    """Splits to score after training."""
    sampler: Sampler = Sampler()
    """Sampling of tasks and rows."""
    length_window: Annotated[int, Field(ge=0)] = 0
    """Number of batches whose rows are sorted by length together, to reduce padding; 0:
    unsorted."""
    batch_size: PositiveInt = 32
    """Training rows per step and process. With `token_budget`: maximum rows of a batch. With
    `global_batch_size`: rows per forward pass."""
    token_budget: PositiveInt | None = None
    """Maximum tokens of a training batch per process, padding included; the number of rows varies.
    The loss remains the mean over the answer tokens of a step."""
    packed_length: PositiveInt | None = None
    """Pack several training rows into sequences of at most this many tokens, with attention within
    each row only (decoder-only backbones); null: one row per sequence."""
    global_batch_size: PositiveInt | None = None
    """Training rows per optimizer step over all processes. Rows per process and accumulation follow
    from the number of processes, so training is the same for any number of them."""
    eval_batch_size: PositiveInt = 64
    """Maximum rows per batch in validation and scoring."""
    max_input_length: PositiveInt = 512
    """Maximum tokens of an input."""
    max_output_length: PositiveInt = 64
    """Maximum tokens of an answer."""
    fit_lengths: bool = False
    """Lower the two lengths to the 99th percentile of the data, and to the model's positions."""
    max_cut: Annotated[float, Field(ge=0, le=1)] | None = None
    """Maximum share of a task's rows that may be cut; with more, training does not start."""
    truncate: Truncate = "end"
    """Side of a long input that is cut; text before the input (`prefix`, `descriptions`) is
    kept. Dialogues lose their oldest turns instead."""
    prefix: Literal[TaskPrefix, "auto"] = "name"
    """Text before every input: the task `[name]`, its `[code]` (six letters that do not reveal the
    name), or `none`. `auto` adds the name only if the router cannot identify the task: shared,
    average, random, smear, retrieval, none; expert with two equal rows of the matrix; metadata with
    equal `router.factors` of two tasks. The choice is recorded in the run."""
    descriptions: bool = False
    """Add the task's description before every input (in chats: as system text)."""
    template: Template = "plain"
    """Input format: `plain` text, or a user message in the tokenizer's `chat` template, with the
    answer as the assistant's message (decoder-only backbones)."""
    system: Annotated[str, Field(min_length=1)] | None = None
    """System text of every chat; the task's description is appended."""
    date: Day | None = None
    """Date for chat templates that show one, as YYYY-MM-DD; by default the day on which training
    starts. It is recorded in the run."""
    metrics: dict[TaskName, Annotated[str, AfterValidator(plugin_name(METRICS))]] = {}
    """Metrics by task, instead of those in TASKS.csv: a built-in metric, or `module:Class`."""
    expert_matrix: str | None = None
    """CSV file with expert-assigned skills per task: the default matrix of the expert router.
    `skills.n_skills: per_column` then takes the number of its columns."""
    skip_missing: bool = False
    """Skip tasks of the partition that have no data, instead of raising an error."""
    max_rows: PositiveInt | None = None
    """Maximum rows to read of each file, evenly spaced, for quick trials."""
    max_eval_rows: PositiveInt | None = None
    """Maximum rows per file in validation and scoring only."""
    n_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Data loader processes; 0 collates in the training process."""
    cache_dir: str | None = None
    """Cache folder for tokenised rows and converted tasks; by default `<run.dir>/.cache`."""

    @property
    def longest_row(self) -> int:
        """Maximum tokens of a row."""
        return self.max_input_length + self.max_output_length

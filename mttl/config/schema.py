"""Every setting there is, with its type, its default and its bounds."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from mttl.config.moe_schema import MoE
from mttl.config.section import Fraction, NonNegative, Section, Seed
from mttl.errors import nearest
from mttl.training.adapt import AdaptMode


def _once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} must name each only once")
    return values


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_once)]


class Run(Section):
    """What the run is called and where it goes."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/\\\s.]([^/\\\r\n\t]*[^/\\\s])?$")] = (
        "run"
    )
    """Name of the run's folder; by default from the names of the configuration files."""
    dir: str = "runs"
    """Folder of all runs."""
    seed: Annotated[int, Field(ge=0)] = 13
    """Seed of weights, data order and noise."""


class Proportional(Section):
    """Every row once per epoch."""

    kind: Literal["proportional"] = "proportional"


class Uniform(Section):
    """Each row's task drawn with equal probability."""

    kind: Literal["uniform"]


class Temperature(Section):
    """Each row's task drawn with probability ∝ size^(1 / temperature)."""

    kind: Literal["temperature"]
    temperature: PositiveFloat = 2.0
    """1 draws by size; large values draw all tasks alike."""


class Homogeneous(Section):
    """Every batch of one task, drawn by size."""

    kind: Literal["homogeneous"]


Sampler = Annotated[Proportional | Uniform | Temperature | Homogeneous, Field(discriminator="kind")]


class Data(Section):
    """The tasks, and how their rows become batches."""

    dir: str
    """Folder of the gym: `<task>/<task>_<k>_<sample>_<split>.tsv`."""
    partition: str
    """JSON file with the lists train, dev and test of tasks."""
    samples: Annotated[list[int], Field(min_length=1), AfterValidator(_once)] = [100]
    """Which few-shot samples of every task."""
    split: Literal["train", "train+dev"] = "train"
    """Rows to train on."""
    validation: Literal["dev", "none"] = "dev"
    """Rows to validate on while training; the best checkpoint is chosen by them."""
    evaluate: Annotated[list[Literal["dev", "test"]], AfterValidator(_once)] = ["dev", "test"]
    """Splits that are scored after training."""
    sampler: Sampler = Proportional()
    """How rows are drawn."""
    length_window: Annotated[int, Field(ge=0)] = 0
    """Sort the rows of this many batches by length, so that batches need little padding."""
    batch_size: PositiveInt = 32
    """Training rows per step and process."""
    eval_batch_size: PositiveInt = 64
    """Most rows per batch of validation and scoring."""
    max_input_length: PositiveInt = 512
    """Most tokens of an input."""
    max_output_length: PositiveInt = 64
    """Most tokens of an answer."""
    prefix: bool = True
    """Put `[task]` before every input."""
    descriptions: bool = False
    """Put the description from TASKS.csv before every input."""
    skip_missing: bool = False
    """Leave out tasks of the partition that the gym lacks, instead of an error."""
    max_rows: PositiveInt | None = None
    """Read only so many rows of every file, spread evenly, for quick trials."""
    max_eval_rows: PositiveInt | None = None
    """The same for validation and scoring alone; training reads all."""
    n_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that collate; 0 collates in the training process."""
    cache_dir: str | None = None
    """Where tokenised rows are kept; by default `<run.dir>/.cache`."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.validation == "dev" and self.split == "train+dev":
            raise ValueError(
                "validation 'dev' would score rows that split 'train+dev' trains on; set "
                "validation: none or split: train"
            )
        if self.length_window and self.sampler.kind == "homogeneous":
            raise ValueError("length_window must be 0 with the homogeneous sampler")
        return self


class _AnyBackbone(Section):
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, to save memory."""
    compile: bool = False
    """Compile the backbone with `torch.compile`."""


class Pretrained(_AnyBackbone):
    """A language model from the hub or a folder."""

    kind: Literal["pretrained"]
    name: str
    """Name on the hub, or a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf_file: str | None = None
    """GGUF file inside `name` to read weights and tokenizer from."""
    tokenizer: str | None = None
    """Another tokenizer than the model's own: a name, a folder, or `byte`."""
    train: bool = False
    """Train the backbone too, instead of freezing it."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Of the backbone's weights."""


class Random(_AnyBackbone):
    """A new language model with random weights."""

    kind: Literal["random"]
    model_type: str
    """A model type of transformers, such as t5 or llama."""
    config: dict[str, Any] = {}
    """Arguments of its configuration class."""
    initial_scale: dict[str, PositiveFloat] = {}
    """Factors on the initial weights, by pattern of parameter names."""
    tokenizer: str = "byte"
    """A name, a folder, or `byte`: one id per UTF-8 byte."""
    train: bool = True
    """Train it jointly with the skills."""


Backbone = Annotated[Pretrained | Random, Field(discriminator="kind")]


class _AnySkills(Section):
    n_skills: PositiveInt | Literal["per_task"] = 8
    """How many skills; `per_task` is for the private router."""
    n_heads: PositiveInt = 1
    """Blocks of features that are routed apart; above 1 is multi-head routing."""
    targets: Annotated[list[str], Field(min_length=1)] = ["attention"]
    """Layers that get skills: attention, mlp, all, or patterns of layer names."""


class LoRA(_AnySkills):
    """Low-rank skills."""

    kind: Literal["lora"]
    rank: PositiveInt = 16
    """Rank of each skill."""
    scale: PositiveFloat | None = None
    """Factor on the change; 1 / rank by default."""
    mix: Literal["factors", "deltas", "outputs"] = "factors"
    """Average the factors, their products, or the outputs."""


class IA3(_AnySkills):
    """Skills that rescale a layer's output."""

    kind: Literal["ia3"]


class Dense(_AnySkills):
    """Full weight changes."""

    kind: Literal["dense"]
    mix: Literal["deltas", "outputs"] = "deltas"
    """Average the changes, or the outputs."""


class Sparse(_AnySkills):
    """Changes of few entries, fixed before training."""

    kind: Literal["sparse"]
    sparsity: Fraction = 0.9
    """Fraction of entries that a skill leaves alone."""
    structure: Literal["entries", "rows", "blocks"] = "entries"
    """What is drawn as a whole: entries, all weights into an output, or square blocks."""
    block: PositiveInt = 16
    """Side of a block."""
    support: str = "random"
    """Draw each skill's entries, or give all skills those of a file of sparse_finetune.py."""
    mix: Literal["auto", "deltas", "outputs"] = "auto"
    """Dense changes per example, sparse products, or what is faster."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        drawn = ("sparsity", "structure", "block")
        fields = type(self).model_fields
        given = [name for name in drawn if getattr(self, name) != fields[name].default]
        if self.support != "random" and given:
            raise ValueError(
                f"{', '.join(given)} must stay out where support names a file: it says which "
                "entries change"
            )
        return self


class Supermask(_AnySkills):
    """Masks that keep some weights of the layer and switch off the others."""

    kind: Literal["supermask"]
    threshold: float = 5e-3
    """A weight is kept where its score reaches this; scores start at 0.01."""


class NoSkills(Section):
    """No skills that tasks choose: tokens choose experts, see the section `moe`."""

    kind: Literal["none"]


Skills = Annotated[LoRA | IA3 | Dense | Sparse | Supermask | NoSkills, Field(discriminator="kind")]


class Mixture(Section):
    """The router's weights mix the skills, as `skills.mix` says."""

    kind: Literal["mixture"] = "mixture"


class Fusion(Section):
    """Attention by token over the frozen skills of an earlier run: a second stage of training."""

    kind: Literal["fusion"]
    source: str
    """Folder of the run whose skills are fused."""
    query: Literal["output", "input"] = "output"
    """What a token asks with: what the base layer made of it, or its input."""
    key_size: PositiveInt | None = None
    """Size of queries and keys; the layer's output features by default."""
    value: bool = True
    """Transform the mixture by a matrix that starts as the identity."""
    value_penalty: NonNegative = 0.01
    """Weight in the loss of that matrix's squared distance from the identity."""


Aggregation = Annotated[Mixture | Fusion, Field(discriminator="kind")]


class IBP(Section):
    """The Indian Buffet Process prior on the matrix of tasks by skills."""

    alpha: PositiveFloat = 5.0
    """Concentration: the larger, the more skills a task is expected to use."""
    weight: PositiveFloat = 1.0
    """Weight of the negative log-probability in the loss, summed over groups."""


class Prior(Section):
    """What the loss says about the routing matrix; all off by default."""

    ibp: IBP | None = None
    """The Indian Buffet Process."""
    sparsity: NonNegative = 0.0
    """Weight of the mean probability."""
    mutual_information: NonNegative = 0.0
    """Weight of minus the information between tasks and skills."""
    orthogonality: NonNegative = 0.0
    """Weight of the similarity between the skills' columns."""


class _AnyRouter(Section):
    granularity: Literal["model", "stack", "block", "layer", "linear"] = "linear"
    """Which layers share a routing row."""


class Polytropon(_AnyRouter):
    """A learned soft partition; with `skills.n_heads` above 1, multi-head routing."""

    kind: Literal["polytropon"]
    relaxed: bool = True
    """Draw from the relaxed Bernoulli while training; else use the probabilities."""
    straight_through: bool = False
    """Round draws to 0 or 1 while training."""
    temperature: PositiveFloat = 1.0
    """Of the relaxed Bernoulli."""
    final_temperature: PositiveFloat | None = None
    """Anneal the temperature to this value over training."""
    init_scale: NonNegative = 1e-3
    """Logits start in U(-init_scale, init_scale)."""
    normalise: Literal["sum", "average_correction"] = "sum"
    """Divide by the row's sum, or multiply by sqrt(heads / skills)."""
    shared_skill: bool = False
    """The last skill is on for every task."""
    logit_dropout: Fraction = 0.0
    """Probability of dropping a logit to 0 while training."""
    prior: Prior = Prior()
    """What the loss says about the matrix."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.final_temperature is not None and not self.relaxed:
            raise ValueError("final_temperature needs relaxed: true; otherwise nothing is drawn")
        return self


class Shared(_AnyRouter):
    """One skill for all tasks; needs `skills.n_skills: 1`."""

    kind: Literal["shared"]


class Private(_AnyRouter):
    """One skill per task; needs `skills.n_skills: per_task`."""

    kind: Literal["private"]


class Average(_AnyRouter):
    """All skills alike."""

    kind: Literal["average"]


class Expert(_AnyRouter):
    """A given matrix of tasks by skills."""

    kind: Literal["expert"]
    matrix: str
    """CSV file: a header `task,<skills>` and a row of weights per task."""


class TaskMoE(_AnyRouter):
    """Softmax over skills, the best few kept."""

    kind: Literal["task_moe"]
    top_k: Annotated[int, Field(ge=2)] = 2
    """Skills that a task keeps."""
    noise: bool = True
    """Add noise to the logits while training."""


class HyperFormer(_AnyRouter):
    """Mixing weights generated from an embedding of the task."""

    kind: Literal["hyperformer"]
    embedding_size: PositiveInt | None = None
    """Size of the embedding; the number of skills by default."""


class NoRouter(_AnyRouter):
    """No routing by task; needs `skills.kind: none`."""

    kind: Literal["none"]


Router = Annotated[
    Polytropon | Shared | Private | Average | Expert | TaskMoE | HyperFormer | NoRouter,
    Field(discriminator="kind"),
]


class _AnyOptim(Section):
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills: the slow one."""
    router_lr: PositiveFloat | None = None
    """Learning rate of the router: the fast one; `lr` by default."""
    backbone_lr: PositiveFloat | None = None
    """Learning rate of a trained backbone; `lr` by default."""
    token_router_lr: PositiveFloat | None = None
    """Learning rate of the routers of tokens; `lr` by default."""
    weight_decay: NonNegative = 0.01
    """Of matrices; never of the router."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Course of the learning rates after the warm-up."""
    warmup: NonNegative = 0.06
    """Steps of linear warm-up; below 1, a fraction of all steps."""
    label_smoothing: Fraction = 0.0
    """Of the training loss."""

    @field_validator("warmup")
    @classmethod
    def _whole_steps(cls, warmup: float) -> float:
        if warmup >= 1 and not warmup.is_integer():
            raise ValueError(f"{warmup} must be below 1 (a fraction) or a whole number of steps")
        return warmup


class _AdamLike(_AnyOptim):
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    """Decay of the two moments."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""


class AdamW(_AdamLike):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]


class Adam(_AdamLike):
    """Adam; weight decay is part of the gradient."""

    kind: Literal["adam"]


class Adafactor(_AnyOptim):
    """Adafactor: factored second moments."""

    kind: Literal["adafactor"]
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Exponent of the second moment's decay."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Bound of the update's root mean square."""
    smallest_scale: PositiveFloat = 1.0
    """Rates are relative to a tensor's root mean square, and to this where it is smaller: skills
    and logits start near zero, and Adafactor's own 1e-3 would leave them there for long."""


Optim = Annotated[AdamW | Adam | Adafactor, Field(discriminator="kind")]


class Generation(Section):
    """How answers are generated in validation and scoring."""

    num_beams: PositiveInt = 1
    """1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length in a beam's score; needs beams."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.length_penalty != 1.0 and self.num_beams == 1:
            raise ValueError("length_penalty needs num_beams above 1")
        return self


class Adapt(Section):
    """Few-shot adaptation to new tasks."""

    mode: AdaptMode = "all"
    """What to train; see `mttl.training.adapt`."""
    init: Literal["mean", "fresh"] = "mean"
    """How the routing of a new task starts: at the mean of the trained tasks, or untrained."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and of the backbone in the mode `full`."""
    router_lr: PositiveFloat = 0.1
    """Learning rate of the router."""
    weight_decay: NonNegative = 0.01
    """Of matrices; never of the router."""
    max_steps: PositiveInt = 200
    """Optimizer steps of each job."""
    eval_every: PositiveInt = 50
    """Steps between two scores on the development rows; the best weights are kept."""
    batch_size: PositiveInt = 8
    """Rows per step."""
    warmup: NonNegative = 0.1
    """Steps of linear warm-up; below 1, a fraction of all steps."""
    gradient_clip_val: PositiveFloat | None = 1.0
    """Largest norm of the gradients."""
    seeds: Seeds = [13]
    """Every sample is repeated with each."""


class Range(Section):
    """The values that a setting may take; whole numbers where both ends are."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Draw the logarithm evenly, as for learning rates."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low}) must be above 0 where log is true")
        return self


class Search(Section):
    """Which settings of adaptation `pl_search.py` tries: a grid, or ranges."""

    grid: dict[str, Annotated[list[int | float | bool | str], Field(min_length=1)]] = {}
    """Values by setting, such as `adapt.lr: [1e-3, 1e-4]`; every combination is a trial."""
    ranges: dict[str, Range] = {}
    """Bounds by setting, such as `adapt.lr: {low: 1e-4, high: 1e-2, log: true}`; needs Optuna."""
    trials: PositiveInt = 20
    """How many trials draw from the ranges."""
    seed: Annotated[int, Field(ge=0)] = 13
    """Of those draws."""

    @field_validator("grid")
    @classmethod
    def _once(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, values in grid.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{name} ({values}) must name each value only once")
        return grid

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.grid and self.ranges:
            raise ValueError("grid and ranges cannot both be searched; empty one of them with {}")
        # Seeds are repetitions, not a choice.
        allowed = [f"adapt.{name}" for name in Adapt.model_fields if name != "seeds"]
        for name in (*self.grid, *self.ranges):
            if name not in allowed:
                hint = nearest(name, allowed) or f" There are: {', '.join(allowed)}."
                raise ValueError(f"'{name}' is no setting that can be searched.{hint}")
        return self


class Trainer(Section):
    """Lightning's own words, and what to log to."""

    max_steps: Annotated[int, Field(ge=-1)] = -1
    """Optimizer steps; -1 for no bound."""
    max_epochs: Annotated[int, Field(ge=-1)] | None = None
    """Passes over the training rows; none for no bound."""
    max_time: Annotated[str, Field(pattern=r"^\d+:\d\d:\d\d:\d\d$")] | None = None
    """Longest time, as days:hours:minutes:seconds."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    """Kind of device."""
    devices: (
        PositiveInt
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Literal[-1, "auto"]
    ) = "auto"
    """How many devices, or which; -1 for all."""
    num_nodes: PositiveInt = 1
    """Machines."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How devices share the work."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"] = (
        "32-true"
    )
    """Of the arithmetic."""
    gradient_clip_val: NonNegative | None = None
    """Largest norm of the gradients."""
    accumulate_grad_batches: PositiveInt = 1
    """Batches per optimizer step."""
    val_check_interval: PositiveInt | Annotated[float, Field(gt=0, le=1)] | None = None
    """Validate every so many batches, or after this fraction of an epoch."""
    check_val_every_n_epoch: PositiveInt = 1
    """Validate after every so many epochs, where no number of batches is given."""
    log_every_n_steps: PositiveInt = 50
    """Steps between two rows of training metrics."""
    limit_val_batches: PositiveInt | Annotated[float, Field(gt=0, le=1)] | None = None
    """Validate on this many batches, or this fraction of them, only."""
    deterministic: bool = False
    """Refuse operations without a deterministic implementation."""
    loggers: list[Literal["tensorboard", "wandb"]] = []
    """Loggers beside metrics.csv."""
    early_stopping: PositiveInt | None = None
    """Stop after so many validations without a better mean score."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.max_steps == -1 and self.max_epochs in (None, -1):
            raise ValueError(
                "max_steps or max_epochs must bound the training, also beside max_time: the "
                "schedule of the learning rates needs a number of steps"
            )
        return self


class Config(Section):
    """All sections of a run."""

    run: Run = Run()
    """Name, folder, seed."""
    data: Data
    """Tasks and batches."""
    backbone: Backbone
    """The language model."""
    skills: Skills
    """The inventory."""
    router: Router
    """Who uses which skills."""
    aggregation: Aggregation = Mixture()
    """How the chosen skills combine."""
    moe: MoE | None = None
    """Experts that tokens choose, beside or instead of skills that tasks choose."""
    optim: Optim
    """Optimizer and learning rates."""
    generation: Generation = Generation()
    """How answers are generated."""
    adapt: Adapt = Adapt()
    """Few-shot adaptation."""
    search: Search = Search()
    """What to try in adaptation; nothing by default."""
    trainer: Trainer
    """The training loop."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        problems: list[str] = []
        if self.data.validation == "none" and self.trainer.early_stopping is not None:
            problems.append("trainer.early_stopping needs data.validation: dev")
        problems += self._task_problems()
        problems += self._token_problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _task_problems(self) -> list[str]:
        """Return what does not fit between skills and the task router."""
        kind, skills = self.router.kind, self.skills
        problems: list[str] = []
        prior = self.moe is not None and self.moe.task_prior != "none"
        if skills.kind == "none":
            if self.moe is None:
                problems.append(
                    "skills.kind 'none' needs a section moe, or there is nothing to learn"
                )
            if kind != "none" and not prior:
                problems.append(
                    f"router.kind '{kind}' has no skills to route; set router.kind: none, or "
                    "moe.task_prior: logits to route tokens by it"
                )
            return problems
        if kind == "none":
            return [*problems, f"router.kind 'none' needs skills.kind: none, not '{skills.kind}'"]
        n_skills, n_heads = skills.n_skills, skills.n_heads
        if kind == "shared" and n_skills != 1:
            problems.append(f"skills.n_skills ({n_skills}) must be 1 for the shared router")
        if kind == "private" and n_skills != "per_task":
            problems.append(
                f"skills.n_skills ({n_skills}) must be 'per_task' for the private router"
            )
        fused = self.aggregation.kind == "fusion"  # whose skills may be those of a private router
        if n_skills == "per_task" and kind not in ("private", "shared") and not fused:
            problems.append(f"skills.n_skills 'per_task' is for the private router, not '{kind}'")
        if self.router.kind == "task_moe" and n_skills != "per_task":
            top_k = self.router.top_k
            if top_k > n_skills:
                problems.append(
                    f"router.top_k ({top_k}) must not exceed skills.n_skills ({n_skills})"
                )
        if kind == "hyperformer" and n_heads != 1:
            problems.append(f"skills.n_heads ({n_heads}) must be 1 for the hyperformer router")
        if self.moe is not None and prior:
            if n_skills != self.moe.n_experts:
                problems.append(
                    f"skills.n_skills ({n_skills}) must be moe.n_experts ({self.moe.n_experts}) "
                    "where rows of tasks are a prior on experts"
                )
            if n_heads != 1:
                problems.append(f"skills.n_heads ({n_heads}) must be 1 with moe.task_prior")
        if fused:
            for name, found, needed in (
                ("skills.kind", skills.kind, "lora"),
                ("skills.n_heads", n_heads, 1),
                ("router.kind", kind, "average"),  # attention takes the router's place
                ("backbone.train", self.backbone.train, False),
                ("moe", "given" if self.moe else None, None),
            ):
                if found != needed:
                    problems.append(f"{name} ({found}) must be {needed} for aggregation fusion")
        return problems

    def _token_problems(self) -> list[str]:
        """Return what does not fit between the task router and experts."""
        if self.moe is None or self.moe.task_prior == "none":
            return []
        kind, prior = self.router.kind, self.moe.task_prior
        if kind in ("none", "shared", "average"):
            return [f"moe.task_prior '{prior}' needs a router that tells tasks apart, not '{kind}'"]
        if kind == "hyperformer" and prior == "logits":
            return [
                "moe.task_prior 'logits' takes logarithms, and rows of the hyperformer router "
                "may be negative; use another router"
            ]
        if prior == "mask" and kind not in ("expert", "private"):
            return [
                f"moe.task_prior 'mask' needs rows with zeros that are given (router expert or "
                f"private); of router '{kind}' use 'logits', which learns"
            ]
        return []

"""Every setting there is, with its type, its default and its bounds."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from mttl.config.backbone_schema import Backbone
from mttl.config.data_schema import Data
from mttl.config.moe_schema import MoE
from mttl.config.optim_schema import Optim
from mttl.config.own_parts import OwnKinds, OwnPart
from mttl.config.router_schema import Polytropon, Router
from mttl.config.section import (
    AS_TRAINED,
    FREE,
    AdaptMode,
    NonNegative,
    RowInit,
    Section,
    Seed,
    Seeds,
    models_in,
)
from mttl.config.skills_schema import Aggregation, Mixture, Skills, kinds_of
from mttl.errors import nearest
from mttl.own_classes import CALLBACKS, LOSSES


class Run(Section):
    """What the run is called and where it goes."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/\\\s.]([^/\\\r\n\t]*[^/\\\s])?$")] = (
        "run"
    )
    """Name of the run's folder; by default from the names of the configuration files."""
    dir: str = "runs"
    """Folder of all runs."""
    seed: Seed = 13
    """Seed of weights, data order and noise."""
    start: str | None = None
    """Folder of a run whose skills, and backbone if it was trained, are where training starts; the
    router is a new one."""


class Generation(Section):
    """How answers are found in validation and scoring."""

    num_beams: PositiveInt = 1
    """1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length in a beam's score; needs beams."""
    mode: Literal["generate", "rank", "both"] = "generate"
    """Generate answers; rank the options of every task by their likelihood; or both, rank where a
    task has options. They are in the column options of TASKS.csv, or its rows' few answers."""
    per_token: bool = True
    """Rank by means over the tokens of an option rather than by sums."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.length_penalty != 1.0 and self.num_beams == 1:
            raise ValueError("length_penalty needs num_beams above 1")
        if self.mode == "rank" and self.num_beams > 1:
            raise ValueError(
                f"num_beams ({self.num_beams}) searches answers, and mode 'rank' takes them from "
                "the options of the task; remove it, or use mode both"
            )
        if self.mode == "generate" and not self.per_token:
            raise ValueError("per_token (false) is for answers that are ranked; set mode: rank")
        return self


class Adapt(Section):
    """Few-shot adaptation to new tasks."""

    mode: AdaptMode = "all"
    """What to train; see `mttl.adaptation.modes`."""
    init: RowInit | Literal["auto", "two_starts"] = "auto"
    """How the routing of a new task starts: at the mean of the trained tasks, untrained, at the row
    of the trained task by which its training rows cost least, at its row of the Expert's matrix,
    with a fresh skill of its own, a row of Polytropon's, composed of its factors, fixed with all
    skills alike, or as free coefficients of the skills: all 1 / K (CAT), or the weights of the
    trained task by which its rows cost least. `auto` is the best row in mode `all`,
    if there are examples and trained tasks are routed differently, and else the mean. `two_starts`
    is the same, but where that is the best row adapts from the mean as well, and keeps what scores
    higher on the development rows: twice the work."""
    gradient_free: bool = False
    """Look for one coefficient per skill, the same in all layers, by evolution (LoraHub), trying
    `max_steps` of them. Needs mode `router_only` and init `coefficients`."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and of the backbone in the mode `full`."""
    router_lr: PositiveFloat = 0.1
    """Learning rate of the router."""
    up_lr_ratio: PositiveFloat = 1.0
    """Rate of the second factors of low-rank skills over that of the first (LoRA+)."""
    weight_decay: NonNegative = 0.01
    """Of matrices; never of the router."""
    max_steps: PositiveInt = 200
    """Optimizer steps of each job."""
    eval_every: PositiveInt = 50
    """Steps between two scores on the development rows; the best weights are kept."""
    batch_size: PositiveInt = 8
    """Rows per step."""
    unlikelihood: NonNegative = 0.0
    """Weight in the loss of how likely tokens of wrong options are (T-Few, which takes 1)."""
    length_normalised: NonNegative = 0.0
    """Weight in the loss of the choice among options by the means of their tokens (likewise)."""
    warmup: NonNegative = 0.1
    """Steps of linear warm-up; below 1, a fraction of all steps."""
    gradient_clip_val: PositiveFloat | None = 1.0
    """Largest norm of the gradients."""
    seeds: Seeds = [13]
    """Every sample is repeated with each."""
    examples: Annotated[int, Field(ge=0)] | None = None
    """Training rows of every job, drawn by its seed, and as many development rows, or all where
    there are fewer; all by default. 0 trains nothing and scores the start."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.init == "own" and self.mode in ("zero_shot", "router_only", "average"):
            raise ValueError(
                "init 'own' gives a new task a fresh skill, which mode "
                f"'{self.mode}' does not train; use 'skills_only' or 'full', or another init, as "
                "'mean'"
            )
        if self.init == "fresh" and self.mode == "average":
            raise ValueError(
                "mode 'average' gives a new task all skills alike, so that init 'fresh' changes "
                "nothing; leave it out"
            )
        if self.init in AS_TRAINED and (
            self.mode in ("average", "from_scratch") or self.examples == 0
        ):
            told = (
                f"mode '{self.mode}' takes no row over" if self.examples != 0 else "examples is 0"
            )
            raise ValueError(
                f"init '{self.init}' begins as the trained task that explains the new task's rows "
                f"best, and {told}; use '{'coefficients' if self.init in FREE else 'mean'}', or "
                "another mode and some examples"
            )
        if self.init in FREE and self.mode in ("average", "from_scratch"):
            raise ValueError(
                f"mode '{self.mode}' takes no row of coefficients; use 'router_only', which learns "
                "them alone, 'zero_shot', 'skills_only', 'all' or 'full'"
            )
        if self.gradient_free and (self.mode, self.init) != ("router_only", "coefficients"):
            raise ValueError(
                "gradient_free looks for coefficients alone: set mode: router_only and init: "
                f"coefficients, not '{self.mode}' and '{self.init}'"
            )
        still = self.mode == "zero_shot" or self.gradient_free or self.examples == 0
        if self.option_weights and still:
            raise ValueError(
                "unlikelihood and length_normalised are losses of gradient descent, and mode "
                "'zero_shot', gradient_free and examples 0 make no such steps; set them to 0"
            )
        if self.up_lr_ratio != 1 and self.mode in ("zero_shot", "router_only"):
            raise ValueError(
                f"up_lr_ratio ({self.up_lr_ratio:g}) is for skills that are trained, which mode "
                f"'{self.mode}' does not; leave it out, or use 'all' or 'skills_only'"
            )
        if self.init in ("matrix", "learned") and self.mode == "average":
            raise ValueError(
                f"mode 'average' mixes all skills alike and takes no init '{self.init}'"
            )
        if self.init == "factors" and self.mode in ("average", "from_scratch"):
            raise ValueError(
                f"mode '{self.mode}' takes no row over from training, so init 'factors' composes "
                "none; use 'zero_shot', 'router_only', 'skills_only', 'all' or 'full'"
            )
        return self

    @property
    def option_weights(self) -> dict[str, float]:
        """The weights of the losses over options, where there are any."""
        names = ("unlikelihood", "length_normalised")
        return self.model_dump(include=set(names)) if any(getattr(self, n) for n in names) else {}


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
    """Which settings of adaptation, or of training (`optim.`), `pl_search.py` tries."""

    grid: dict[str, Annotated[list[int | float | bool | str], Field(min_length=1)]] = {}
    """Values by setting, such as `adapt.lr: [1e-3, 1e-4]`; every combination is a trial."""
    points: list[dict[str, int | float | bool | str]] = []
    """Trials as they stand, such as `{adapt.lr: 1e-3, adapt.router_lr: 1e-2}`."""
    ranges: dict[str, Range] = {}
    """Bounds by setting, such as `adapt.lr: {low: 1e-4, high: 1e-2, log: true}`; needs Optuna."""
    trials: PositiveInt = 20
    """How many trials draw from the ranges."""
    seed: Seed = 13
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
        given = [name for name in ("grid", "points", "ranges") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} cannot both be searched; empty one of them with {{}} or []"
            )
        # Seeds and rows are what is compared on, not a choice.
        kept = ("seeds", "examples")
        allowed = [f"adapt.{name}" for name in Adapt.model_fields if name not in kept]
        optim = {name: None for kind in models_in(Optim) for name in kind.model_fields}
        allowed += [f"optim.{name}" for name in optim if name not in ("kind", "meta")]
        names = self.names
        for name in names:
            if name not in allowed:
                hint = nearest(name, allowed) or f" There are: {', '.join(allowed)}."
                raise ValueError(f"'{name}' is no setting that can be searched.{hint}")
        if len({name.partition(".")[0] for name in names}) > 1:
            raise ValueError(
                f"{', '.join(names)}: settings of training and of adaptation cannot be searched "
                "at once; search those of training first"
            )
        return self

    @property
    def names(self) -> list[str]:
        """The settings that are searched."""
        points = (name for point in self.points for name in point)
        return list(dict.fromkeys((*self.grid, *self.ranges, *points)))

    @property
    def trains(self) -> bool:
        """Whether they are settings of training."""
        return any(name.startswith("optim.") for name in self.names)


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
    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    """How devices share the work; `fsdp2` shards the model over them, backbone included."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"] = (
        "32-true"
    )
    """Of the arithmetic."""
    gradient_clip_val: NonNegative | None = None
    """Largest norm of the gradients."""
    accumulate_grad_batches: PositiveInt = 1
    """Batches per optimizer step; each counts by its answer tokens, as if they were one batch."""
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
    """Boards to compare runs on, beside metrics.csv."""
    callbacks: list[Annotated[OwnPart, OwnKinds(CALLBACKS)]] = []
    """Callbacks of one's own for Lightning's trainer."""
    early_stopping: PositiveInt | None = None
    """Stop after so many validations without a better mean score."""

    @model_validator(mode="before")
    @classmethod
    def _one_axis(cls, given: Any) -> Any:
        if isinstance(given, dict) and "tensor_parallel" in given:
            raise ValueError(
                f"tensor_parallel ({given['tensor_parallel']}) is not offered: layers that are cut "
                "across processes would need a cut of their own for every kind of skill. Leave it "
                "out; strategy fsdp2 shards the model over all devices"
            )
        return given

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.strategy == "fsdp2" and self.precision in ("16-mixed", "64-true"):
            raise ValueError(
                f"precision ({self.precision}) must be one of 32-true, bf16-mixed, bf16-true, "
                "16-true with strategy fsdp2, which neither scales losses nor shards doubles"
            )
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
    loss: Annotated[OwnPart, OwnKinds(LOSSES)] | None = None
    """A training loss of one's own; cross-entropy by default."""
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
        if self.trainer.strategy == "fsdp2" and self.optim.kind == "adafactor":
            problems.append(
                "optim.kind must be adamw or adam with trainer.strategy fsdp2: PyTorch's Adafactor "
                "takes means over axes that are spread over processes"
            )
        if self.trainer.strategy == "fsdp2" and self.backbone.compile:
            problems.append(
                "backbone.compile must be false with trainer.strategy fsdp2: a model that is "
                "compiled as a whole cannot be put together block by block"
            )
        vectors = [getattr(one, "vector", "layer") for one in kinds_of(self.skills)]
        if self.trainer.strategy == "fsdp2" and {*vectors} - {"layer"}:
            problems.append(
                "skills.vector must be 'layer' with trainer.strategy fsdp2, which puts one block "
                "together at a time; the other strategies take a vector of the whole model"
            )
        shared = any(getattr(one, "shared", False) for one in kinds_of(self.skills))
        if self.trainer.strategy == "fsdp2" and shared:
            problems.append(
                "skills.shared must be false with trainer.strategy fsdp2, which spreads a model "
                "block by block: what all layers share is in no block"
            )
        if self.backbone.compile and any(one.kind == "ladder" for one in kinds_of(self.skills)):
            problems.append(
                "backbone.compile must be false with skills.kind 'ladder', which takes the states "
                "between the blocks from hooks; or take skills that change layers (lora, adapter …)"
            )
        if self.optim.up_lr_ratio != 1 and not self._is_low_rank():
            problems.append(
                f"optim.up_lr_ratio ({self.optim.up_lr_ratio:g}) is for low-rank skills, not "
                f"'{self.skills.kind}'; remove it, or take skills.kind: lora"
            )
        shared = self.trainer.strategy == "fsdp2" or (self.moe is not None and self.moe.parallel)
        if shared and self.generation.mode != "generate":
            problems.append(
                f"generation.mode '{self.generation.mode}' cannot be with processes that hold a "
                "model together (trainer.strategy fsdp2, moe.parallel), which need as many passes "
                "each; set generation.mode: generate, or trainer.strategy: ddp"
            )
        if self.loss is not None and self.optim.label_smoothing:
            problems.append("optim.label_smoothing must be 0 with a loss of one's own")
        if self.router.kind == "score_function":
            learns = "router.kind 'score_function' learns from the loss of each example, and"
            if self.trainer.strategy == "fsdp2":
                problems.append(f"{learns} trainer.strategy fsdp2 spreads its logits; use ddp")
            if self.data.packed_length is not None:
                problems.append(f"{learns} data.packed_length puts them together; remove it")
        consistency = getattr(self.router, "consistency", 0)
        if consistency and self.trainer.strategy == "fsdp2":
            problems.append(
                f"router.consistency ({consistency}) must be 0 with trainer.strategy fsdp2: it "
                "takes two passes before the backward one, which ddp can do"
            )
        if self.run.start is not None:
            for wrong, name, reason in (
                (
                    *(self.aggregation.kind == "fusion", "aggregation.kind 'fusion'"),
                    "takes the skills of aggregation.source",
                ),
                (self.moe is not None, "a section moe", "has experts that it knows nothing of"),
            ):
                if wrong:
                    problems.append(f"run.start must stay out: {name} {reason}")
        packed = f"data.packed_length ({self.data.packed_length})"
        if self.data.packed_length is not None and self.moe is not None:
            problems.append(f"{packed} cannot be with a section moe, which counts tokens by row")
        if self.data.packed_length is not None and self.backbone.compile:
            problems.append(
                f"{packed} needs backbone.compile: false, since the rows of every batch begin at "
                "other places"
            )
        problems += self._front_problems()
        for name in ("token_budget", "packed_length"):
            if self.data.global_batch_size is not None and getattr(self.data, name) is not None:
                problems.append(
                    f"data.{name} ({getattr(self.data, name)}) cannot be with "
                    f"data.global_batch_size ({self.data.global_batch_size}), which counts rows; "
                    "remove one of them"
                )
        accumulated = self.trainer.accumulate_grad_batches
        if self.data.global_batch_size is not None and accumulated != 1:
            problems.append(
                f"trainer.accumulate_grad_batches ({accumulated}) must be 1, its default, where "
                "data.global_batch_size is given: it follows from that, data.batch_size and the "
                "number of processes"
            )
        quantised = getattr(self.backbone, "quantize", None)
        if quantised and self.adapt.mode == "full":
            problems.append(
                f"adapt.mode 'full' trains the backbone, which backbone.quantize ('{quantised}') "
                "keeps frozen; use another mode, or remove quantize"
            )
        if quantised and self.trainer.strategy not in ("auto", "ddp"):
            problems.append(
                f"trainer.strategy '{self.trainer.strategy}' cannot cut weights in few bits "
                f"(backbone.quantize '{quantised}') into parts; use ddp, or remove quantize"
            )
        wanted, most = self.adapt.examples, self.data.max_rows
        if wanted is not None and most is not None and wanted > most:
            problems.append(
                f"adapt.examples ({wanted}) cannot be more than data.max_rows ({most}) reads"
            )
        problems += self._meta_problems()
        problems += self._task_problems()
        problems += self._token_problems()
        problems += self._sharing_problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _is_low_rank(self) -> bool:
        """Return whether any skills or experts have two factors; those of one's own may."""
        kinds = [*kinds_of(self.skills), *([self.moe.experts] if self.moe else [])]
        return any(one.kind == "lora" or isinstance(one, OwnPart) for one in kinds)

    def _front_problems(self) -> list[str]:
        """Return what does not fit what stands in front of the text."""
        kinds = {one.kind for one in kinds_of(self.skills)} & {"prefix", "prompt"}
        if not kinds:
            return []
        front, problems = f"skills.kind '{max(kinds)}'", []
        other = "or take skills that change layers (lora, ia3, adapter …)"
        if self.data.packed_length is not None:
            problems.append(
                f"data.packed_length ({self.data.packed_length}) puts several texts behind one "
                f"another, and {front} stands in front of one; remove it, {other}"
            )
        if "prompt" in kinds and self.moe is not None:
            problems.append(
                f"{front} adds positions that the token routers of a section moe know nothing of; "
                f"remove the section, {other}"
            )
        return problems

    def _meta_problems(self) -> list[str]:
        """Return what does not fit meta-learning."""
        meta, data, trainer = self.optim.meta, self.data, self.trainer
        if meta is None:
            return []
        parts = 2 if meta.kind == "maml" else meta.inner_steps
        n_rows, sampler = data.batch_size, data.sampler.kind
        return [
            f"{name} with optim.meta '{meta.kind}': {reason}"
            for wrong, name, reason in (
                (
                    *(
                        sampler != "homogeneous",
                        f"data.sampler.kind ({sampler}) must be homogeneous",
                    ),
                    "every batch is of one task",
                ),
                (
                    *(n_rows < parts, f"data.batch_size ({n_rows}) must be at least {parts}"),
                    "its parts are what the steps see",
                ),
                (
                    *(data.packed_length is not None, "data.packed_length must stay out"),
                    "a batch is cut by rows",
                ),
                (
                    *(data.global_batch_size is not None, "data.global_batch_size must stay out"),
                    "losses are those of one task, not of a step; set data.batch_size, and the "
                    "tasks of a step by trainer.accumulate_grad_batches",
                ),
                (
                    *(self.moe is not None, "a section moe must stay out"),
                    "loads of experts are counted and balanced by step, not within one",
                ),
                (
                    *(trainer.strategy == "fsdp2", "trainer.strategy (fsdp2) must be auto or ddp"),
                    "steps on a task move whole parameters",
                ),
                (
                    trainer.precision == "16-mixed",
                    "trainer.precision (16-mixed) must be another, such as bf16-mixed,",
                    "steps on a task do not scale losses",
                ),
            )
            if wrong
        ]

    def _task_problems(self) -> list[str]:
        """Return what does not fit between skills and the task router."""
        kind, skills = self.router.kind, self.skills
        problems: list[str] = []
        prior = self.moe is not None and self.moe.task_prior != "none"
        if skills.kind == "none":
            if self.moe is None:
                problems.append(
                    "skills.kind 'none' needs a section moe, or nothing is routed; to tune the "
                    "backbone alone, see backbone/last_block.yaml"
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
        if n_skills == "per_task" and kind not in ("private", "shared", "retrieval") and not fused:
            problems.append(f"skills.n_skills 'per_task' is for the private router, not '{kind}'")
        if self.router.kind == "task_moe" and n_skills != "per_task":
            top_k = self.router.top_k
            if top_k > n_skills:
                problems.append(
                    f"router.top_k ({top_k}) must not exceed skills.n_skills ({n_skills})"
                )
        if kind == "hyperformer" and n_heads != 1:
            problems.append(f"skills.n_heads ({n_heads}) must be 1 for the hyperformer router")
        stacked = next(filter(None, (getattr(one, "stacked", 0) for one in kinds_of(skills))), None)
        if stacked and kind in ("hyperformer", "coefficients"):
            problems.append(
                f"skills.stacked ({stacked}) takes the share of a storey's skills in a row, and "
                f"rows of the {kind} router may be negative; use another router"
            )
        if self.moe is not None and prior:
            if n_skills != self.moe.n_experts:
                problems.append(
                    f"skills.n_skills ({n_skills}) must be moe.n_experts ({self.moe.n_experts}) "
                    "where rows of tasks are a prior on experts"
                )
            if n_heads != 1:
                problems.append(f"skills.n_heads ({n_heads}) must be 1 with moe.task_prior")
        if fused:
            fusable = skills.kind if skills.kind in ("lora", "adapter") else "lora or adapter"
            for name, found, needed in (
                ("skills.kind", skills.kind, fusable),
                ("skills.n_heads", n_heads, 1),
                ("skills.gate", getattr(skills, "gate", False), False),
                ("skills.alike", getattr(skills, "alike", False), False),
                ("skills.stacked", getattr(skills, "stacked", None), None),
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
        if kind in ("none", "shared", "average", "random"):
            return [f"moe.task_prior '{prior}' needs a router that tells tasks apart, not '{kind}'"]
        if kind == "c_poly":
            return [
                f"moe.task_prior '{prior}' weighs experts, which are of no task, and router "
                "'c_poly' gives tasks skills of their own; use polytropon"
            ]
        if kind in ("hyperformer", "coefficients") and prior == "logits":
            return [
                f"moe.task_prior 'logits' takes logarithms, and rows of the {kind} router "
                "may be negative; use another router"
            ]
        router = self.router
        bernoulli = isinstance(router, Polytropon)
        if bernoulli and router.straight_through and not router.shared_skill:
            return [
                f"moe.task_prior '{prior}' needs an expert for every task, and a router with "
                "straight_through may leave a task none; set router.straight_through: false, or "
                "router.shared_skill: true"
            ]
        one_skill = router.kind == "categorical" and router.straight_through
        if one_skill or router.kind == "score_function":
            return [
                f"moe.task_prior '{prior}' would leave a task the one expert that router '{kind}' "
                "chose for it; use a router that mixes"
            ]
        if prior == "mask" and kind not in ("expert", "private"):
            return [
                f"moe.task_prior 'mask' needs rows with zeros that are given (router expert or "
                f"private); of router '{kind}' use 'logits', which learns"
            ]
        return []

    def _sharing_problems(self) -> list[str]:
        """Return what does not fit experts that are shared out among processes."""
        if self.moe is None or not self.moe.parallel:
            return []
        allowed = ("auto", "ddp")
        problems = [
            f"{name} ({found}) must be {needed} with moe.parallel: {reason}"
            for name, found, wrong, needed, reason in (
                (
                    *("trainer.strategy", self.trainer.strategy),
                    *(self.trainer.strategy not in allowed, " or ".join(allowed)),
                    "two ways to share out the same experts exclude each other",
                ),
                (
                    *("trainer.precision", self.trainer.precision),
                    *(self.trainer.precision == "16-mixed", "another"),
                    "processes would leave out different steps. Use bf16-mixed",
                ),
                (
                    *("optim.kind", self.optim.kind, self.optim.kind == "adafactor"),
                    *("adamw or adam", "its updates depend on whole tensors"),
                ),
                (
                    *("backbone.compile", self.backbone.compile, self.backbone.compile, False),
                    "tokens travel between processes in the middle of the model",
                ),
            )
            if wrong
        ]
        devices = self.trainer.devices
        n_devices = len(devices) if isinstance(devices, list) else devices
        if isinstance(n_devices, int) and n_devices > 0:
            problems += filter(None, [self.moe.problem_of(n_devices * self.trainer.num_nodes)])
        return problems

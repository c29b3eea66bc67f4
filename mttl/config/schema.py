"""Every setting there is, with its type, its default and its bounds."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from mttl.config.backbone_schema import Backbone
from mttl.config.capabilities import missing_features
from mttl.config.data_schema import Data
from mttl.config.moe_schema import MoE
from mttl.config.optim_schema import Optim
from mttl.config.plugin_section import PluginKinds, PluginSection
from mttl.config.router_schema import Router
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
    once,
)
from mttl.config.skills_schema import Aggregation, Mixture, Skills, kinds_of
from mttl.io.errors import nearest
from mttl.plugins.classes import CALLBACKS, LOSSES


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
    asks: ClassVar = {"starts": "start"}
    start: str | None = None
    """Folder of a run whose skills, and backbone if it was trained, are where training starts; the
    router is a new one."""


class Generation(Section):
    """How answers are found in validation and scoring."""

    lacks: ClassVar = dict.fromkeys(
        ("shards", "shares_experts"),
        (
            "mode != generate",
            "processes that hold a model together would need as many passes each; set it to "
            "generate, or use ddp",
        ),
    )
    num_beams: PositiveInt = 1
    """1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length in a beam's score; needs beams."""
    from_backbone: bool = False
    """Apply the backbone's own settings of tokens and lengths, such as `repetition_penalty`,
    `suppress_tokens`, `min_length` and `forced_bos_token_id`. Without it, only the ids of start,
    end and padding are the backbone's."""
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
    init: RowInit | Literal["auto", "best_of_two"] = "auto"
    """How the routing of a new task starts: at the mean of the trained tasks (`mean`), untrained
    (`fresh`), at the trained task with the lowest loss on the new examples (`nearest_task`), at its
    row of the Expert's matrix (`expert_row`), with a fresh skill (`private_skill`), as Polytropon's
    row (`learned`), composed of its factors (`factors`), at equal weights (`average`), or as free
    coefficients of the skills: all 1 / K (`coefficients`, CAT), or those of the trained task with
    the lowest loss (`best_coefficients`). `auto` is `nearest_task` in mode `all`, if there are
    examples and trained tasks are routed differently, and else `mean`. `best_of_two` is `auto`, but
    where that is `nearest_task` it adapts from the mean as well, and keeps the start that scores
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
        mode, init, steps = self.mode, self.init, self.examples != 0
        no_row = mode in ("average", "from_scratch")
        like = "coefficients" if init in FREE else "mean"
        told = f"mode '{mode}' takes no row over" if steps else "examples is 0"
        still = mode == "zero_shot" or self.gradient_free or not steps
        problems = {
            f"init 'private_skill' gives a new task a fresh skill, which mode '{mode}' does not "
            "train; use 'skills_only' or 'full', or another init, as 'mean'": init
            == "private_skill"
            and mode in ("zero_shot", "router_only", "average"),
            "mode 'average' gives a new task equal weights of all skills, so init 'fresh' changes "
            "nothing; leave it out": init == "fresh" and mode == "average",
            f"init '{init}' begins as the trained task that explains the new task's rows best, and "
            f"{told}; use '{like}', or another mode and some examples": init in AS_TRAINED
            and (no_row or not steps),
            f"mode '{mode}' takes no row of coefficients; use 'router_only', which learns them "
            "alone, 'zero_shot', 'skills_only', 'all' or 'full'": init in FREE and no_row,
            "gradient_free looks for coefficients alone: set mode: router_only and init: "
            f"coefficients, not '{mode}' and '{init}'": self.gradient_free
            and (mode, init) != ("router_only", "coefficients"),
            "unlikelihood and length_normalised are losses of gradient descent, and mode "
            "'zero_shot', gradient_free and examples 0 make no such steps; set them to 0": still
            and bool(self.option_weights),
            f"up_lr_ratio ({self.up_lr_ratio:g}) is for skills that are trained, which mode "
            f"'{mode}' does not; leave it out, or use 'all' or 'skills_only'": self.up_lr_ratio != 1
            and mode in ("zero_shot", "router_only"),
            f"mode 'average' has equal weights of all skills and takes no init '{init}'": mode
            == "average"
            and init in ("expert_row", "learned"),
            f"mode '{mode}' takes no row over from training, so init 'factors' composes none; use "
            "'zero_shot', 'router_only', 'skills_only', 'all' or 'full'": init == "factors"
            and no_row,
        }
        if found := next((problem for problem, wrong in problems.items() if wrong), None):
            raise ValueError(found)
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
    """Which settings of adaptation, or of training (`optim.`), `mttl search` tries."""

    grid: dict[
        str, Annotated[list[int | float | bool | str], Field(min_length=1), AfterValidator(once)]
    ] = {}
    """Values by setting, such as `adapt.lr: [1e-3, 1e-4]`; every combination is a trial."""
    points: list[dict[str, int | float | bool | str]] = []
    """Trials as they stand, such as `{adapt.lr: 1e-3, adapt.router_lr: 1e-2}`."""
    ranges: dict[str, Range] = {}
    """Bounds by setting, such as `adapt.lr: {low: 1e-4, high: 1e-2, log: true}`; needs Optuna."""
    trials: PositiveInt = 20
    """How many trials draw from the ranges."""
    seed: Seed = 13
    """Of those draws."""

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
                raise ValueError(f"'{name}' is not a setting that can be searched.{hint}")
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

    asks: ClassVar = {"shards": "strategy = fsdp2", "scales_losses": "precision = 16-mixed"}
    lacks: ClassVar = {
        "compiles": (
            "strategy = fsdp2",
            "what is compiled as a whole cannot be put together block by block; use ddp",
        ),
        "shares_experts": (
            "strategy = fsdp2",
            "two ways to share out the same experts exclude each other; use auto or ddp",
        ),
        "counts_rows": (
            "accumulate_grad_batches > 1",
            "it follows from data.global_batch_size, data.batch_size and the number of processes; "
            "leave it out",
        ),
    }
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
    """Experiment loggers, beside metrics.csv."""
    callbacks: list[Annotated[PluginSection, PluginKinds(CALLBACKS)]] = []
    """Custom callbacks of Lightning's trainer."""
    early_stopping: PositiveInt | None = None
    """Stop after so many validations without a better mean score."""

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
    loss: Annotated[PluginSection, PluginKinds(LOSSES)] | None = None
    """Custom training loss; cross-entropy by default."""
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
        if self.optim.up_lr_ratio != 1 and not self._is_low_rank():
            problems.append(
                f"optim.up_lr_ratio ({self.optim.up_lr_ratio:g}) is for low-rank skills, not "
                f"'{self.skills.kind}'; remove it, or take skills.kind: lora"
            )
        if self.loss is not None and self.optim.label_smoothing:
            problems.append("optim.label_smoothing must be 0 with a custom loss")
        for name in ("token_budget", "packed_length"):
            if self.data.global_batch_size is not None and getattr(self.data, name) is not None:
                problems.append(
                    f"data.{name} ({getattr(self.data, name)}) cannot be with "
                    f"data.global_batch_size ({self.data.global_batch_size}), which counts rows; "
                    "remove one of them"
                )
        quantised = getattr(self.backbone, "quantize", None)
        if quantised and self.adapt.mode == "full":
            problems.append(
                f"adapt.mode 'full' trains the backbone, which backbone.quantize ('{quantised}') "
                "keeps frozen; use another mode, or remove quantize"
            )
        wanted, most = self.adapt.examples, self.data.max_rows
        if wanted is not None and most is not None and wanted > most:
            problems.append(
                f"adapt.examples ({wanted}) cannot be more than data.max_rows ({most}) reads"
            )
        if (meta := self.optim.meta) is not None:
            parts = 2 if meta.kind == "maml" else meta.inner_steps
            n_rows, sampler = self.data.batch_size, self.data.sampler.kind
            told = f"optim.meta '{meta.kind}'"
            if sampler != "homogeneous":
                problems.append(f"data.sampler.kind ({sampler}) must be homogeneous with {told}")
            if n_rows < parts:
                problems.append(f"data.batch_size ({n_rows}) must be at least {parts} with {told}")
        problems += self._task_problems()
        if (
            self.moe
            and self.moe.task_prior == "mask"
            and self.router.kind not in ("expert", "private")
        ):
            problems.append(
                "moe.task_prior 'mask' needs rows with zeros that are given (router expert or "
                f"private); of router '{self.router.kind}' use 'logits', which learns"
            )
        problems += missing_features(self)
        if self.moe is not None and self.moe.parallel:
            devices = self.trainer.devices
            count = len(devices) if isinstance(devices, list) else devices
            if isinstance(count, int) and count > 0:
                problems += filter(None, [self.moe.problem_of(count * self.trainer.num_nodes)])
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _is_low_rank(self) -> bool:
        """Return whether any skills or experts may have two factors; custom ones may."""
        kinds = [*kinds_of(self.skills), *([self.moe.experts] if self.moe else [])]
        return any(one.kind == "lora" or isinstance(one, PluginSection) for one in kinds)

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
            return [
                f"router.kind 'none' gives skills (skills.kind '{skills.kind}') no weights; for "
                "one skill of all tasks set router.kind: shared and skills.n_skills: 1, or for "
                "tokens that choose take one of router/token_*.yaml"
            ]
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
        if self.moe is not None and prior and n_skills != self.moe.n_experts:
            problems.append(
                f"skills.n_skills ({n_skills}) must be moe.n_experts ({self.moe.n_experts}) "
                "where rows of tasks are a prior on experts"
            )
        if fused:
            fusable = skills.kind if skills.kind in ("lora", "adapter") else "lora or adapter"
            for name, found, needed in (
                ("skills.kind", skills.kind, fusable),
                ("skills.n_heads", n_heads, 1),
                ("skills.gate", getattr(skills, "gate", False), False),
                ("skills.identical_init", getattr(skills, "identical_init", False), False),
                ("skills.stages", getattr(skills, "stages", None), None),
                ("router.kind", kind, "average"),  # attention takes the router's place
                ("backbone.train", self.backbone.train, False),
                ("moe", "given" if self.moe else None, None),
            ):
                if found != needed:
                    problems.append(f"{name} ({found}) must be {needed} for aggregation fusion")
        return problems

"""Settings of a run for text-to-text tasks, with types, defaults and bounds."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from mttl.config.backbone_schema import Backbone, Heads
from mttl.config.capabilities import missing_features
from mttl.config.data_schema import Data
from mttl.config.moe_schema import MoE
from mttl.config.optim_schema import Optim
from mttl.config.plugin_section import PluginKinds, PluginSection
from mttl.config.section import AdaptMode, RowInit, Section, Seed, Seeds, models_in, once
from mttl.config.skills_schema import COUNTS, Aggregation, Mixture, Router, Skills, kinds_of
from mttl.io.errors import nearest
from mttl.plugins.classes import CALLBACKS, LOSSES
from mttl.plugins.describe import notes_of
from mttl.plugins.part_settings import NonNegative


class Run(Section):
    """Name, folder and seed of a run."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/\\\s.]([^/\\\r\n\t]*[^/\\\s])?$")] = (
        "run"
    )
    """Name of the run's folder; by default derived from the configuration files."""
    dir: str = "runs"
    """Folder of all runs."""
    seed: Seed = 13
    """Seed of weights, data order and noise."""
    asks: ClassVar = {"starts": "start"}
    refuses: ClassVar = {
        f"{name} and not start": f"{name} needs start, the run's folder"
        for name in ("start_router", "freeze_skills")
    }
    start: str | None = None
    """Run folder whose skills (and backbone, if trained) initialise training; the router is new,
    except with `start_router`."""
    start_router: bool = False
    """Start with the router of `start`, too; its tasks and section router must be the same."""
    freeze_skills: bool = False
    """Train the router, but not the skills of `start`."""


class Generation(Section):
    """Generation of answers in validation and scoring."""

    lacks: ClassVar = dict.fromkeys(
        ("shards", "shares_experts"),
        (
            "mode = rank|both",
            "processes would run different numbers of passes; set generation.mode: generate",
        ),
    )
    refuses: ClassVar = {
        "length_penalty != 1.0 and num_beams = 1": "length_penalty ({length_penalty}) needs "
        "num_beams above 1",
        "mode = rank and num_beams > 1": "num_beams ({num_beams}) is for generation, which mode "
        "rank does not use; set mode: both or num_beams: 1",
        "mode = generate and not per_token": "per_token (false) needs mode auto, rank or both",
    }
    num_beams: PositiveInt = 1
    """Number of beams; 1 is greedy decoding."""
    length_penalty: float = 1.0
    """Exponent of the length in a beam's score; needs num_beams above 1."""
    from_backbone: bool = False
    """Apply the backbone's own generation settings, such as `repetition_penalty`,
    `suppress_tokens`, `min_length` and `forced_bos_token_id`; by default only its start, end and
    padding ids are used."""
    mode: Literal["auto", "generate", "rank", "both"] = "auto"
    """`auto`: score declared options by likelihood, and generate the answers of other tasks;
    `generate` all answers; `rank` options in all tasks; `both`: rank if a task has options.
    Options are declared in the task file or in TASKS.csv; `rank` and `both` also take the
    distinct answers of the rows if there are few."""
    per_token: bool = True
    """Rank options by mean instead of total token log-likelihood."""


_WITHOUT_STEPS = ("mode = zero_shot|in_context", "gradient_free", "examples = 0")


class Adapt(Section):
    """Few-shot adaptation to new tasks."""

    asks: ClassVar = {"trains_backbone": "mode = full"}
    refuses: ClassVar = {
        "init = private_skill and mode = zero_shot|in_context|router_only|average": "init "
        "'private_skill' adds an untrained skill, which mode '{mode}' does not train; use mode "
        "'skills_only'",
        "mode = average and init = fresh|expert_row|learned": "mode 'average' uses equal weights "
        "of all skills, so init '{init}' has no effect; remove it",
        "mode = average|from_scratch and init = nearest_task|factors|coefficients|"
        "best_coefficients": "mode '{mode}' trains no routing weights, so init '{init}' has no "
        "effect; use mode 'all', 'router_only' or 'skills_only', or init 'mean'",
        "examples = 0 and init = nearest_task|best_coefficients": "init '{init}' needs examples of "
        "the new task, and examples is 0; use init 'mean' or 'coefficients'",
        **dict.fromkeys(
            ("gradient_free and mode != router_only", "gradient_free and init != coefficients"),
            "gradient_free trains coefficients only: it needs mode 'router_only' and init "
            "'coefficients', not '{mode}' and '{init}'",
        ),
        **dict.fromkeys(
            ("option_weights and " + still for still in _WITHOUT_STEPS),
            "unlikelihood and length_normalised need training steps, which modes 'zero_shot' and "
            "'in_context', gradient_free and examples 0 do not take; set both to 0",
        ),
        "mode = in_context and examples = 0": "mode 'in_context' needs examples, and examples is "
        "0; use mode 'zero_shot'",
        "context_length and mode != in_context": "context_length is for mode 'in_context', not "
        "'{mode}'; remove it",
        "up_lr_ratio != 1.0 and mode = zero_shot|in_context|router_only": "up_lr_ratio "
        "({up_lr_ratio:g}) needs trained skills, which mode '{mode}' does not train; remove it",
    }
    mode: AdaptMode = "all"
    """What is trained: `all`: skills and routing weights; `router_only`; `skills_only`; `full`:
    also the backbone; `average`: skills with equal routing weights; `from_scratch`: re-initialised
    skills and router; `zero_shot`, `in_context`: nothing."""
    init: RowInit | Literal["auto", "best_of_two"] = "auto"
    """Initial routing of a new task: `mean` of the trained tasks; `fresh` (untrained);
    `nearest_task`: the trained task with the lowest loss on the new examples; `expert_row`: its row
    of the expert matrix; `private_skill`: an untrained skill; `learned`: a new row of logits, as in
    Polytropon; `factors`: composed of its factors; `average`: equal weights (with mode `zero_shot`
    this is MHR-μ before training); `coefficients`: unconstrained coefficients of 1 / K (CAT);
    `best_coefficients`: those of the trained task with the lowest loss. `auto` is `nearest_task` in
    mode `all` if there are examples and the routing of trained tasks differs, else `mean`.
    `best_of_two` also adapts from the mean if `auto` is `nearest_task`, and keeps the better of
    both on the development rows."""
    gradient_free: bool = False
    """Search one coefficient per skill, shared by all layers, by evolution (LoraHub), with
    `max_steps` evaluations. Needs mode `router_only` and init `coefficients`."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and in mode `full` also of the backbone."""
    router_lr: PositiveFloat | None = 0.1
    """Learning rate of the router; null: that of the skills."""
    up_lr_ratio: PositiveFloat = 1.0
    """Learning-rate ratio of the second to the first low-rank factor (LoRA+)."""
    weight_decay: NonNegative = 0.01
    """Weight decay of matrices; not applied to the router."""
    max_steps: PositiveInt = 200
    """Optimizer steps per adaptation."""
    eval_every: PositiveInt = 50
    """Steps between two evaluations on the development rows; the best weights are kept."""
    batch_size: PositiveInt = 8
    """Rows per step."""
    unlikelihood: NonNegative = 0.0
    """Weight of the unlikelihood loss on wrong options (T-Few: 1)."""
    length_normalised: NonNegative = 0.0
    """Weight of the cross-entropy over length-normalised option scores (T-Few: 1)."""
    warmup: NonNegative = 0.1
    """Steps of linear warm-up; below 1: fraction of all steps."""
    gradient_clip_val: PositiveFloat | None = 1.0
    """Maximum norm of the gradients."""
    seeds: Seeds = [13]
    """Seeds; every sample is adapted once with each."""
    examples: Annotated[int, Field(ge=0)] | None = None
    """Training rows per adaptation, drawn by its seed, with at most as many development rows; by
    default all rows. 0 evaluates the initial state without training."""
    context_length: PositiveInt | None = None
    """Maximum tokens of an input with its examples in mode `in_context`; as many examples as fit
    are used. By default 1,024, or the backbone's maximum if smaller."""

    @property
    def option_weights(self) -> dict[str, float]:
        """Weights of the losses over options; empty if all are 0."""
        names = ("unlikelihood", "length_normalised")
        return self.model_dump(include=set(names)) if any(getattr(self, n) for n in names) else {}


class Range(Section):
    """Range of a searched setting; integers if both ends are integers."""

    refuses: ClassVar = {
        "not low < high": "low ({low}) must be below high ({high})",
        "log and not low > 0": "low ({low}) must be above 0 where log is true",
    }
    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Sample uniformly in the logarithm, as for learning rates."""


class Search(Section):
    """Settings of adaptation (`adapt.`) or training (`optim.`) that `mttl search` varies."""

    adapt: ClassVar[type[Section]] = Adapt
    refuses: ClassVar = {
        f"{one} and {other}": f"{one} and {other} cannot be combined; remove one of them"
        for one, other in (("grid", "points"), ("grid", "ranges"), ("points", "ranges"))
    }
    grid: dict[
        str, Annotated[list[int | float | bool | str], Field(min_length=1), AfterValidator(once)]
    ] = {}
    """Values by setting, such as `adapt.lr: [1e-3, 1e-4]`; every combination is a trial."""
    points: list[dict[str, int | float | bool | str]] = []
    """List of trials, such as `{adapt.lr: 1e-3, adapt.router_lr: 1e-2}`."""
    ranges: dict[str, Range] = {}
    """Range by setting, such as `adapt.lr: {low: 1e-4, high: 1e-2, log: true}`; needs Optuna."""
    trials: PositiveInt = 20
    """Number of trials drawn from the ranges."""
    seed: Seed = 13
    """Seed of these draws."""

    def problems(self) -> Iterator[str]:
        """Yield one sentence per conflict between settings."""
        yield from super().problems()
        # Seeds and examples define the comparison and cannot be searched.
        fixed = {"seeds", "examples", "levels"}
        allowed = [f"adapt.{name}" for name in self.adapt.model_fields.keys() - fixed]
        optim = {name for kind in models_in(Optim) for name in kind.model_fields}
        allowed += [
            f"optim.{name}" for name in optim - {"divergence", "kind", "meta", "separate", "tasks"}
        ]
        for name in self.names:
            if name not in allowed:
                yield f"'{name}' is not a setting that can be searched.{nearest(name, allowed)}"
        if len({name.partition(".")[0] for name in self.names}) > 1:
            yield f"{', '.join(self.names)}: search either adapt. or optim. settings, not both"

    @property
    def names(self) -> list[str]:
        """Names of the searched settings."""
        points = (name for point in self.points for name in point)
        return list(dict.fromkeys((*self.grid, *self.ranges, *points)))

    @property
    def trains(self) -> bool:
        """True if training settings are searched."""
        return any(name.startswith("optim.") for name in self.names)


class Trainer(Section):
    """Settings of Lightning's trainer, and the loggers."""

    asks: ClassVar = {"shards": "strategy = fsdp2", "scales_losses": "precision = 16-mixed"}
    lacks: ClassVar = {
        "compiles": ("strategy = fsdp2", "it gathers block by block; set trainer.strategy: ddp"),
        "shares_experts": ("strategy = fsdp2", "it shards experts too; set trainer.strategy: ddp"),
        "counts_rows": (
            "accumulate_grad_batches > 1",
            "data.global_batch_size determines it; set trainer.accumulate_grad_batches: 1",
        ),
    }
    refuses: ClassVar = {
        "strategy = fsdp2 and precision = 16-mixed|64-true": "precision ({precision}) must be one "
        "of 32-true, bf16-mixed, bf16-true, 16-true with strategy fsdp2",
        "max_steps = -1 and max_epochs = None|-1": "max_steps or max_epochs must be set, also with "
        "max_time, because schedules need the number of steps",
    }
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """Maximum optimizer steps; -1: unlimited."""
    max_epochs: Annotated[int, Field(ge=-1)] | None = None
    """Maximum passes over the training rows; null: unlimited."""
    max_time: Annotated[str, Field(pattern=r"^\d+:\d\d:\d\d:\d\d$")] | None = None
    """Maximum training time, as days:hours:minutes:seconds."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    """Device type."""
    devices: (
        PositiveInt
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Literal[-1, "auto"]
    ) = "auto"
    """Number of devices, or a list of their indices; -1: all."""
    num_nodes: PositiveInt = 1
    """Number of machines."""
    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    """Distributed strategy; `fsdp2` shards the model, backbone included."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"] = (
        "32-true"
    )
    """Numerical precision of training."""
    gradient_clip_val: NonNegative | None = None
    """Maximum norm of the gradients."""
    accumulate_grad_batches: PositiveInt = 1
    """Batches per optimizer step, weighted by answer tokens as in one large batch."""
    val_check_interval: PositiveInt | Annotated[float, Field(gt=0, le=1)] | None = None
    """Batches between validations, or a fraction of `max_steps` (of an epoch if unlimited); by
    default a third of `max_steps`, or one epoch. The last step is always validated."""
    log_every_n_steps: PositiveInt = 50
    """Steps between two rows of training metrics."""
    deterministic: bool = False
    """Reject operations without a deterministic implementation."""
    loggers: list[Literal["tensorboard", "wandb"]] = []
    """Experiment loggers in addition to metrics.csv."""
    callbacks: list[Annotated[PluginSection, PluginKinds(CALLBACKS)]] = []
    """Custom callbacks of Lightning's trainer."""
    early_stopping: PositiveInt | None = None
    """Number of validations without a better mean score after which training stops."""


# Required values of settings with fusion, whose attention replaces the router.
NOT_FUSED = {
    **{"skills.kind != lora|adapter": "lora or adapter", "skills.n_heads > 1": "1"},
    **{"skills.gate": "false", "skills.identical_init": "false", "skills.stages": "null"},
    **{"router.kind != average": "average", "backbone.train": "false"},
}
# Required values of settings if tasks are trained separately.
SEPARATE = {
    **{"router.kind != private": "private", "optim.kind = adafactor": "adamw or adam"},
    **{"data.sampler.kind != proportional": "proportional", "data.packed_length": "null"},
    **{"data.token_budget": "null", "data.global_batch_size": "null", "optim.meta": "null"},
    **{"trainer.accumulate_grad_batches > 1": "1", "trainer.strategy = fsdp2": "auto or ddp"},
    **{"backbone.train": "false", "moe": "null", "optim.divergence": "null"},
}


class Config(Section):
    """All sections of a run."""

    refuses: ClassVar = {
        "data.validation = none and trainer.early_stopping": "trainer.early_stopping needs "
        "data.validation: dev",
        "loss and optim.label_smoothing": "optim.label_smoothing must be 0 with a custom loss",
        "backbone.quantize and adapt.mode = full": "adapt.mode 'full' trains the backbone, which "
        "needs an "
        "unquantised backbone; remove backbone.quantize ('{backbone.quantize}') or change the mode",
        "adapt.examples > data.max_rows": "adapt.examples ({adapt.examples}) must not exceed "
        "data.max_rows ({data.max_rows})",
        "optim.up_lr_ratio != 1.0 and not low_rank": "optim.up_lr_ratio ({optim.up_lr_ratio:g}) is "
        "only for low-rank skills, not skills.kind '{skills.kind}'",
        "optim.meta and data.sampler.kind != homogeneous": "data.sampler.kind "
        "({data.sampler.kind}) must be homogeneous with optim.meta '{optim.meta.kind}'",
        "data.batch_size < optim.meta.n_parts": "data.batch_size ({data.batch_size}) must be at "
        "least {optim.meta.n_parts} with optim.meta '{optim.meta.kind}'",
        "skills.kind = none and not moe": "skills.kind 'none' needs a section moe; to train only "
        "the backbone, see backbone/last_block.yaml",
        "skills.kind = none and router.kind != none and not moe.task_prior": "router.kind "
        "'{router.kind}' has no skills to route: set router.kind: none, or moe.task_prior: logits",
        "skills.kind != none and router.kind = none": "router.kind 'none' gives skills "
        "(skills.kind '{skills.kind}') no weights; use shared for one skill of all tasks, or one "
        "of router/token_*.yaml for token routing",
        **COUNTS,
        "router.kind = task_moe and router.top_k > skills.n_skills": "router.top_k "
        "({router.top_k}) must not exceed skills.n_skills ({skills.n_skills})",
        **dict.fromkeys(
            (
                "moe.task_prior and skills.n_skills = per_task",
                "moe.task_prior and skills.n_skills < moe.n_experts",
                "moe.task_prior and skills.n_skills > moe.n_experts",
            ),
            "skills.n_skills ({skills.n_skills}) must be moe.n_experts ({moe.n_experts}) with "
            "moe.task_prior",
        ),
        **{
            f"aggregation.kind = fusion and {clause}": f"{name} must be {needed} with "
            "aggregation.kind 'fusion'"
            for clause, needed in NOT_FUSED.items()
            for name in clause.split()[:1]
        },
        **{
            f"optim.separate and {clause}": f"{name} must be {needed} with optim.separate, not "
            f"{{{name}}}"
            for clause, needed in SEPARATE.items()
            for name in clause.split()[:1]
        },
        "aggregation.kind = fusion and moe": "aggregation.kind 'fusion' does not work with moe",
    }
    run: Run = Run()
    """Name, folder and seed."""
    data: Data
    """Tasks, files and batches."""
    backbone: Backbone
    """Language model."""
    skills: Skills
    """Inventory of skills."""
    router: Router
    """Assignment of skills to tasks."""
    aggregation: Aggregation = Mixture()
    """Combination of the selected skills."""
    moe: MoE | None = None
    """Mixture of experts per token, in addition to or instead of skills."""
    heads: Heads = Heads()
    """Heads of tasks that do not generate their answers."""
    optim: Optim
    """Optimizer and learning rates."""
    loss: Annotated[PluginSection, PluginKinds(LOSSES)] | None = None
    """Custom training loss; by default cross-entropy."""
    generation: Generation = Generation()
    """Generation of answers."""
    adapt: Adapt = Adapt()
    """Few-shot adaptation."""
    search: Search = Search()
    """Hyperparameter search; by default empty."""
    trainer: Trainer
    """Training loop."""

    def problems(self) -> Iterator[str]:
        """Yield one sentence per conflict between settings."""
        yield from super().problems()
        yield from missing_features(self)

    @property
    def low_rank(self) -> bool:
        """True if some skills or experts have two factors, or may have."""
        kinds = [*kinds_of(self.skills), *([self.moe.experts] if self.moe else [])]
        return any(
            isinstance(one, PluginSection) or not notes_of(type(one), "lacks").get("has_factors")
            for one in kinds
        )

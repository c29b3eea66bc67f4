"""Every setting there is, with its type, its default and its bounds."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from mttl.config.backbone_schema import Backbone
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
        ("mode != generate", "the processes need as many passes each; set it to generate, or ddp"),
    )
    refuses: ClassVar = {
        "length_penalty != 1.0 and num_beams = 1": "length_penalty needs num_beams above 1",
        "mode = rank and num_beams > 1": "num_beams ({num_beams}) searches answers, and mode rank "
        "takes them from a task's options; use mode both",
        "mode = generate and not per_token": "per_token (false) is for answers that are ranked",
    }
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


_WITHOUT_STEPS = ("mode = zero_shot|in_context", "gradient_free", "examples = 0")


class Adapt(Section):
    """Few-shot adaptation to new tasks."""

    refuses: ClassVar = {
        "init = private_skill and mode = zero_shot|in_context|router_only|average": "init "
        "'private_skill' gives a new task a fresh skill, which mode '{mode}' does not train; use "
        "'skills_only'",
        "mode = average and init = fresh|expert_row|learned": "mode 'average' has equal weights of "
        "all skills and takes no init '{init}'; leave it out",
        "mode = average|from_scratch and init = nearest_task|factors|coefficients|"
        "best_coefficients": "mode '{mode}' takes no row over, so init '{init}' sets none; use "
        "mode 'all', 'router_only' or 'skills_only', or init 'mean'",
        "examples = 0 and init = nearest_task|best_coefficients": "init '{init}' compares trained "
        "tasks on examples of the new one, and examples is 0; use 'mean' or 'coefficients'",
        **dict.fromkeys(
            ("gradient_free and mode != router_only", "gradient_free and init != coefficients"),
            "gradient_free looks for coefficients alone: set mode: router_only and init: "
            "coefficients, not '{mode}' and '{init}'",
        ),
        **dict.fromkeys(
            ("option_weights and " + still for still in _WITHOUT_STEPS),
            "unlikelihood and length_normalised are losses of gradient descent, and modes "
            "'zero_shot' and 'in_context', gradient_free and examples 0 take no such steps; set "
            "them to 0",
        ),
        "mode = in_context and examples = 0": "mode 'in_context' shows examples, and examples is "
        "0; use 'zero_shot'",
        "context_length and mode != in_context": "context_length is for the examples that mode "
        "'in_context' shows, not for '{mode}'; leave it out",
        "up_lr_ratio != 1.0 and mode = zero_shot|in_context|router_only": "up_lr_ratio "
        "({up_lr_ratio:g}) is for skills that are trained, which mode '{mode}' does not",
    }
    mode: AdaptMode = "all"
    """What to train; see `mttl.adaptation.modes`."""
    init: RowInit | Literal["auto", "best_of_two"] = "auto"
    """How the routing of a new task starts: at the mean of the trained tasks (`mean`), untrained
    (`fresh`), at the trained task with the lowest loss on the new examples (`nearest_task`), at its
    row of the Expert's matrix (`expert_row`), with a fresh skill (`private_skill`), as Polytropon's
    row (`learned`), composed of its factors (`factors`), at equal weights (`average`; in mode
    `zero_shot` this is MHR-μ before any step), or as free coefficients of the skills: all 1 / K
    (`coefficients`, CAT), or those of the trained task with the lowest loss
    (`best_coefficients`). `auto` is `nearest_task` in mode `all`, if there are
    examples and trained tasks are routed differently, and else `mean`. `best_of_two` is `auto`, but
    where that is `nearest_task` it adapts from the mean as well, and keeps the start that scores
    higher on the development rows: twice the work."""
    gradient_free: bool = False
    """Look for one coefficient per skill, the same in all layers, by evolution (LoraHub), trying
    `max_steps` of them. Needs mode `router_only` and init `coefficients`."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and of the backbone in the mode `full`."""
    router_lr: PositiveFloat | None = 0.1
    """Learning rate of the router; none: that of the skills."""
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
    context_length: PositiveInt | None = None
    """Most tokens of a question with the training rows before it, in the mode `in_context`: as many
    rows as fit. By default 1,024, or the positions of the backbone if they are fewer."""

    @property
    def option_weights(self) -> dict[str, float]:
        """The weights of the losses over options, where there are any."""
        names = ("unlikelihood", "length_normalised")
        return self.model_dump(include=set(names)) if any(getattr(self, n) for n in names) else {}


class Range(Section):
    """The values that a setting may take; whole numbers where both ends are."""

    refuses: ClassVar = {
        "not low < high": "low ({low}) must be below high ({high})",
        "log and not low > 0": "low ({low}) must be above 0 where log is true",
    }
    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Draw the logarithm evenly, as for learning rates."""


class Search(Section):
    """Which settings of adaptation, or of training (`optim.`), `mttl search` tries."""

    refuses: ClassVar = {
        f"{one} and {other}": f"{one} and {other} cannot both be searched; empty one of them"
        for one, other in (("grid", "points"), ("grid", "ranges"), ("points", "ranges"))
    }
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

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together, a sentence each."""
        yield from super().problems()
        # Seeds and rows are what is compared on, not a choice.
        allowed = [f"adapt.{name}" for name in Adapt.model_fields.keys() - {"seeds", "examples"}]
        optim = {name for kind in models_in(Optim) for name in kind.model_fields}
        allowed += [f"optim.{name}" for name in optim - {"kind", "meta"}]
        for name in self.names:
            if name not in allowed:
                yield f"'{name}' is not a setting that can be searched.{nearest(name, allowed)}"
        if len({name.partition(".")[0] for name in self.names}) > 1:
            yield f"{', '.join(self.names)}: training and adaptation cannot be searched at once"

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
        "compiles": ("strategy = fsdp2", "it puts blocks together one by one; use ddp"),
        "shares_experts": ("strategy = fsdp2", "it shards the same experts; use auto or ddp"),
        "counts_rows": (
            "accumulate_grad_batches > 1",
            "it follows from the size and the number of processes; leave it out",
        ),
    }
    refuses: ClassVar = {
        "strategy = fsdp2 and precision = 16-mixed|64-true": "precision ({precision}) must be one "
        "of 32-true, bf16-mixed, bf16-true, 16-true with strategy fsdp2",
        "max_steps = -1 and max_epochs = None|-1": "max_steps or max_epochs must bound the "
        "training, also beside max_time: schedules need a number of steps",
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
    """Batches between two validations, or a fraction of `max_steps` (where that has no bound, of an
    epoch); by default a third of `max_steps`, or an epoch. The last step is always validated."""
    log_every_n_steps: PositiveInt = 50
    """Steps between two rows of training metrics."""
    deterministic: bool = False
    """Refuse operations without a deterministic implementation."""
    loggers: list[Literal["tensorboard", "wandb"]] = []
    """Experiment loggers, beside metrics.csv."""
    callbacks: list[Annotated[PluginSection, PluginKinds(CALLBACKS)]] = []
    """Custom callbacks of Lightning's trainer."""
    early_stopping: PositiveInt | None = None
    """Stop after so many validations without a better mean score."""


# What a fusion does not go with, and needs instead; attention takes the router's place.
NOT_FUSED = {
    **{"skills.kind != lora|adapter": "lora or adapter", "skills.n_heads > 1": "1"},
    **{"skills.gate": "False", "skills.identical_init": "False", "skills.stages": "None"},
    **{"router.kind != average": "average", "backbone.train": "False"},
}


class Config(Section):
    """All sections of a run."""

    refuses: ClassVar = {
        "data.validation = none and trainer.early_stopping": "trainer.early_stopping needs "
        "data.validation: dev",
        "loss and optim.label_smoothing": "optim.label_smoothing must be 0 with a custom loss",
        "backbone.quantize and adapt.mode = full": "adapt.mode 'full' trains the backbone, which "
        "backbone.quantize ('{backbone.quantize}') keeps frozen",
        "adapt.examples > data.max_rows": "adapt.examples ({adapt.examples}) cannot be more than "
        "data.max_rows ({data.max_rows}) reads",
        "optim.up_lr_ratio != 1.0 and not low_rank": "optim.up_lr_ratio ({optim.up_lr_ratio:g}) is "
        "for low-rank skills, not '{skills.kind}'",
        "optim.meta and data.sampler.kind != homogeneous": "data.sampler.kind "
        "({data.sampler.kind}) must be homogeneous with optim.meta '{optim.meta.kind}'",
        "data.batch_size < optim.meta.n_parts": "data.batch_size ({data.batch_size}) must be at "
        "least {optim.meta.n_parts} with optim.meta '{optim.meta.kind}'",
        "skills.kind = none and not moe": "skills.kind 'none' needs a section moe; to tune the "
        "backbone alone, see backbone/last_block.yaml",
        "skills.kind = none and router.kind != none and not moe.task_prior": "router.kind "
        "'{router.kind}' has no skills to route; set router.kind: none, or moe.task_prior: logits",
        "skills.kind != none and router.kind = none": "router.kind 'none' gives skills "
        "(skills.kind '{skills.kind}') no weights; for one skill of all tasks take shared, for "
        "tokens that choose one of router/token_*.yaml",
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
            f"aggregation.kind = fusion and {clause}": f"{name} ({{{name}}}) must be {needed} for "
            "aggregation fusion"
            for clause, needed in NOT_FUSED.items()
            for name in clause.split()[:1]
        },
        "aggregation.kind = fusion and moe": "moe (given) must be None for aggregation fusion",
    }
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

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together, a sentence each."""
        yield from super().problems()
        yield from missing_features(self)

    @property
    def low_rank(self) -> bool:
        """Whether some skills or experts have two factors, or may have."""
        kinds = [*kinds_of(self.skills), *([self.moe.experts] if self.moe else [])]
        return any(
            isinstance(one, PluginSection) or not notes_of(type(one), "lacks").get("has_factors")
            for one in kinds
        )

"""The section `router`: which task uses which skills."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mttl.config.plugin_section import PluginKinds
from mttl.config.section import Fraction, NonNegative, Section
from mttl.plugins.classes import ROUTERS

# Routers that do not know which task an example is of, whatever their settings.
BLIND_TO_TASKS = ("shared", "average", "random", "smear", "retrieval", "none")


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


_PICKS = "it chooses one expert for a task; use a router that mixes"


class _AnyRouter(Section):
    granularity: Literal["model", "stack", "block", "layer", "linear"] = "linear"
    """Which layers share a routing row."""


class _Blind(_AnyRouter):
    lacks: ClassVar = {
        "weighs_experts": "it does not tell tasks apart; use a router that does, as polytropon"
    }


class _ByPrompt(_AnyRouter):
    lacks: ClassVar = {
        "policies": "it reads prompts, which only text has; use a router by task, as polytropon",
        "packs": "it reads whole prompts, and packed rows are one sequence; take another router",
        **dict.fromkeys(
            ("merges", "exports_lora"),
            "it mixes skills by the prompt of every example, and no weights of a task stand for "
            "that; answer with the run itself, or take the average (--average)",
        ),
        "exports_inventory": "it mixes skills by prompt, and Poly by task",
    }


class Polytropon(_AnyRouter):
    """A learned soft partition; with `skills.n_heads` above 1, multi-head routing."""

    kind: Literal["polytropon"]
    lacks: ClassVar = {
        "weighs_experts": (
            "straight_through and not shared_skill",
            "it may leave a task no expert; set it to false, or router.shared_skill: true",
        )
    }
    relaxed: bool = True
    """Draw from the relaxed Bernoulli while training; else use the probabilities."""
    straight_through: bool = False
    """Round draws and probabilities to 0 or 1, in training and in evaluation."""
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
        for name in ("temperature", "final_temperature") if not self.relaxed else ():
            if (value := getattr(self, name)) not in (None, 1):
                raise ValueError(
                    f"{name} ({value:g}) needs relaxed: true; otherwise nothing is drawn. Leave it "
                    "out"
                )
        return self


class Metadata(Polytropon):
    """Rows composed of what tasks are known to be made of: the sums of their factors' logits."""

    kind: Literal["metadata"]  # type: ignore[assignment]
    factors: dict[str, Annotated[list[str], Field(min_length=1)]] = {}
    """Of each task, such as `{de_date_long: [language=de, operation=date_long]}`; by default the
    column `factors` of the gym's TASKS.csv."""


class CPoly(Polytropon):
    """Polytropon's rows over `skills.n_skills` common skills and some of each task (C-Poly)."""

    kind: Literal["c_poly"]  # type: ignore[assignment]
    lacks: ClassVar = {
        "weighs_experts": "it gives tasks skills of their own, and experts are of no task; use "
        "polytropon"
    }
    n_private: NonNegativeInt = 1
    """Skills that each task has for itself, besides; 0 is Polytropon."""

    @model_validator(mode="after")
    def _by_task(self) -> Self:
        for name, needed in (("shared_skill", False), ("normalise", "sum")):
            if (found := getattr(self, name)) != needed:
                raise ValueError(
                    f"{name} ({found}) must be {needed} for the c_poly router, where it would "
                    "count skills of other tasks; it is a setting of polytropon"
                )
        return self


class Categorical(_AnyRouter):
    """Each example draws one skill from its task's distribution, by the Gumbel-softmax."""

    kind: Literal["categorical"]
    lacks: ClassVar = {"weighs_experts": ("straight_through", _PICKS)}
    straight_through: bool = True
    """One skill in the forward pass; else a mixture by the drawn weights."""
    temperature: PositiveFloat = 1.0
    """Of the Gumbel-softmax."""
    final_temperature: PositiveFloat | None = None
    """Anneal the temperature to this value over training."""
    init_scale: NonNegative = 1e-3
    """Logits start in U(-init_scale, init_scale)."""


class ScoreFunction(_AnyRouter):
    """Each example draws one skill, and the router learns from its loss (REINFORCE)."""

    kind: Literal["score_function"]
    lacks: ClassVar = {
        "policies": "it learns from the losses of examples, which only text has; use categorical",
        "packs": "it learns from the loss of each example; leave data.packed_length out",
        "shards": "it learns from the loss of each example; use trainer.strategy ddp",
        "weighs_experts": _PICKS,
    }
    entropy: NonNegative = 0.0
    """Weight of minus the entropy of the choices in the loss."""
    init_scale: NonNegative = 1e-3
    """Logits start in U(-init_scale, init_scale)."""


class RandomRouting(_Blind):
    """A random skill per training step for all tasks, their average afterwards (AdaMix)."""

    kind: Literal["random"]
    lacks: ClassVar = {
        "policies": ("consistency", "it compares two answers, which only text has; set it to 0"),
        "shards": ("consistency", "two passes go before the backward one; set it to 0, or use ddp"),
    }
    consistency: NonNegative = 1.0
    """Weight in the loss of how far two passes with other draws differ; 0 computes one pass."""


class Shared(_Blind):
    """One skill for all tasks; needs `skills.n_skills: 1`."""

    kind: Literal["shared"]


class Private(_AnyRouter):
    """One skill per task; needs `skills.n_skills: per_task`."""

    kind: Literal["private"]


class Average(_Blind):
    """All skills with equal weights."""

    kind: Literal["average"]


class Expert(_AnyRouter):
    """A given matrix of tasks by skills."""

    kind: Literal["expert"]
    matrix: str
    """CSV file: a header `task,<skills>` and a row of weights per task; by default
    `data.expert_matrix`."""


class TaskMoE(_AnyRouter):
    """Softmax over skills, the best few kept."""

    kind: Literal["task_moe"]
    top_k: Annotated[int, Field(ge=2)] = 2
    """Skills that a task keeps."""
    noise: bool = True
    """Add noise to the logits while training."""


class _Signed(_AnyRouter):
    asks: ClassVar = {"takes_signed_weights": "kind"}
    lacks: ClassVar = {
        "exports_inventory": "its weights may be negative, and those of Poly sum to 1; export "
        "tasks one by one (--task)"
    }


class HyperFormer(_Signed):
    """Mixing weights generated from an embedding of the task."""

    kind: Literal["hyperformer"]
    lacks: ClassVar = {"has_heads": "it generates whole rows; set skills.n_heads: 1"}
    embedding_size: PositiveInt | None = None
    """Size of the embedding; the number of skills by default."""


class Coefficients(_Signed):
    """Learned rows that are used as they are, without bounds or normalisation (LoRA soups)."""

    kind: Literal["coefficients"]


class Smear(_ByPrompt):
    """Mixing weights read from each prompt, by a linear map; no id of a task is needed (SMEAR)."""

    kind: Literal["smear"]


class Retrieval(_ByPrompt):
    """Members of a library whose tasks' examples are nearest to the prompt; nothing is trained."""

    kind: Literal["retrieval"]
    top_k: PositiveInt = 3
    """Members that an input uses."""
    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over similarities; at large ones all members weigh the same."""
    by: Literal["prompts", "examples"] = "prompts"
    """What is compared: each prompt, or some rows of its task."""


class NoRouter(_Blind):
    """No routing by task; needs `skills.kind: none`."""

    kind: Literal["none"]
    lacks: ClassVar = {"policies": "it gives skills no weights; use shared with n_skills: 1"}


Router = Annotated[
    Polytropon
    | Metadata
    | CPoly
    | Categorical
    | ScoreFunction
    | RandomRouting
    | Shared
    | Private
    | Average
    | Expert
    | TaskMoE
    | HyperFormer
    | Coefficients
    | Smear
    | Retrieval
    | NoRouter,
    Field(discriminator="kind"),
    PluginKinds(ROUTERS, _AnyRouter),
]

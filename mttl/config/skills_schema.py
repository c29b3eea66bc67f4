"""The sections `skills`, `router` and `aggregation`: what skills do, who uses which, and how."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveInt

from mttl.config.plugin_section import PartSection, make_section, parts_of
from mttl.config.section import Section
from mttl.plugins.classes import ROUTERS, SKILLS
from mttl.plugins.part_settings import NonNegative


class _OneKind(Section):
    lacks: ClassVar = {
        **dict.fromkeys(
            ("merges", "averages"),
            ("gate", "it does more than change a weight; answer with mttl predict or mttl serve"),
        ),
        "exports_inventory": "Poly of PEFT holds low-rank skills alone; give --task",
    }
    targets: Annotated[list[str], Field(min_length=1)] = ["attention"]
    """What gets skills: attention, mlp, all, or patterns of names; for kinds that sit there, norms,
    the stack whose output becomes logits, or the input, the embeddings of what reads the text."""
    gate: bool = False
    """A learned gate weakens what skills change, token by token and layer by layer (UniPELT)."""
    identical_init: bool = False
    """Identical initialisation of all skills, so that the mean of trained skills works (AdaMix)."""


class _Sizes(Section):
    asks: ClassVar = {"has_heads": "n_heads > 1"}
    n_skills: PositiveInt | Literal["per_task"] = 8
    """How many skills; `per_task` is for the private router, and `per_column` stands for the number
    that the expert router's matrix has. With the c_poly router those that all tasks share."""
    n_heads: PositiveInt = 1
    """Blocks of features that are routed apart; above 1 is multi-head routing."""


class AnySkills(_Sizes, _OneKind):
    """Settings of all kinds of skills."""


class Several(_Sizes):
    """Several kinds side by side, each with targets of its own."""

    kind: Literal["several"]
    kinds: Annotated[list[parts_of(SKILLS, _OneKind)], Field(min_length=2)]  # type: ignore[valid-type]
    """What would stand in the section for each kind alone, but for the sizes."""

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together, a sentence each."""
        for number, one in enumerate(self.kinds):
            if getattr(one, "support", "random") != "random":
                yield f"kinds.{number}.support must be random beside other kinds"


class NoSkills(Section):
    """No skills that tasks choose: tokens choose experts, see the section `moe`."""

    lacks: ClassVar = {
        "ablates": "there are no skills that tasks mix, only experts that tokens choose"
    }
    kind: Literal["none"]


class AnyRouter(Section):
    """Settings of all routers."""

    granularity: Literal["model", "stack", "block", "layer", "linear"] = "linear"
    """Which layers share a routing row."""


if TYPE_CHECKING:
    Router: TypeAlias = PartSection
    Skills: TypeAlias = PartSection
else:
    Router = parts_of(ROUTERS, AnyRouter)
    Skills = parts_of(SKILLS, AnySkills, Several, NoSkills)


# How many skills a router takes.
COUNTS = {
    "skills.n_skills and router.kind = shared and skills.n_skills != 1": "skills.n_skills "
    "({skills.n_skills}) must be 1 for the shared router",
    "skills.n_skills and router.kind = private and skills.n_skills != per_task": "skills.n_skills "
    "({skills.n_skills}) must be 'per_task' for the private router",
    "skills.n_skills = per_task and router.kind != private|shared|retrieval|none and "
    "aggregation.kind != fusion": "skills.n_skills 'per_task' is for the private router, not "
    "'{router.kind}'",
}


def router_section(kind: str, **settings: Any) -> PartSection:
    """Return the section of a built-in router."""
    return make_section(ROUTERS, AnyRouter, kind, **settings)


def kinds_of(skills: Any) -> list[Any]:
    """Return the sections of the kinds in a section `skills`: several, one, or none."""
    if isinstance(skills, NoSkills):
        return []
    return skills.kinds if isinstance(skills, Several) else [skills]


class Mixture(Section):
    """The router's weights mix the skills, as `skills.mix` says."""

    kind: Literal["mixture"] = "mixture"


class Fusion(Section):
    """Attention by token over the frozen skills of an earlier run: a second stage of training."""

    kind: Literal["fusion"]
    lacks: ClassVar = {
        "starts": "it takes the skills of aggregation.source; leave run.start out",
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory", "ablates"),
            "every token mixes skills by attention; give the run that it fuses",
        ),
    }
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

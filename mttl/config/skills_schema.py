"""Sections `skills`, `router` and `aggregation`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveInt, create_model, model_validator

from mttl.config.plugin_section import PartSection, make_section, parts_of
from mttl.config.section import Section
from mttl.plugins.classes import ROUTERS, SKILLS
from mttl.plugins.part_settings import NonNegative


class _OneKind(Section):
    lacks: ClassVar = {
        **dict.fromkeys(
            ("merges", "averages"),
            ("gate", "the gate depends on the token; use mttl predict or mttl serve"),
        ),
        "exports_inventory": "PEFT's Poly has only low-rank skills; export single tasks (--task)",
    }
    targets: Annotated[list[str], Field(min_length=1)] = ["attention"]
    """Modules with skills: attention, mlp, all, or patterns of names; for some kinds also norms,
    the stack before the logits, or input (the embeddings of the stack that reads the text)."""
    gate: bool = False
    """Scale the skills' change by a learned gate per token and layer (UniPELT)."""
    identical_init: bool = False
    """Identical initialisation of all skills, so that trained skills can be averaged (AdaMix)."""


class _OfOtherRun(Section):
    """Frozen skills of another run; as text: `runs/languages:fr`, or a folder with one task."""

    lacks: ClassVar = {
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory", "ablates", "stands_alone"),
            "its skills need those of other runs (skills.on); use mttl predict or mttl serve, and "
            "keep the folders of all these runs",
        ),
        "stacks": "the run has skills.on itself; name a run without",
        "trains_backbone": "skills.on belongs to the frozen backbone; set backbone.train: false, "
        "and adapt.mode: all or skills_only",
        "routes_tokens": "skills.on is for skills of tasks; remove it or the section moe",
        "shards": "skills.on is not sharded; set trainer.strategy: ddp",
    }
    task: str | None = None
    """Task whose routing is used; by default the only one."""
    inventory: str | None = None
    """Digest of the skills, so that changed ones are an error; training adds it."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(dict(self)["from"])

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            folder, _, task = value.rpartition(":")
            return {"from": folder, "task": task} if folder else {"from": value}
        return value


# A function, since `from` is a word of Python.
OfOtherRun = create_model(
    "OfOtherRun",
    __base__=_OfOtherRun,
    __doc__=_OfOtherRun.__doc__,
    **{"from": (str, Field(description="Folder of the run, or of an adapted task."))},  # type: ignore[call-overload]
)


class _Sizes(Section):
    asks: ClassVar = {"has_heads": "n_heads > 1"}
    on: list[OfOtherRun] = []  # type: ignore[valid-type]
    """Frozen skills of other runs, such as a language, that the skills are trained on top of."""
    n_skills: PositiveInt | Literal["per_task"] = 8
    """Number of skills; `per_task` for the private router, `per_column` for the number of columns
    of the expert router's matrix. With the c_poly router: the number of skills all tasks share."""
    n_heads: PositiveInt = 1
    """Number of feature blocks with separate routing; above 1: multi-head routing."""


class AnySkills(_Sizes, _OneKind):
    """Settings of all kinds of skills."""


class Several(_Sizes):
    """Several kinds of skills, each with its own targets."""

    kind: Literal["several"]
    kinds: Annotated[list[parts_of(SKILLS, _OneKind)], Field(min_length=2)]  # type: ignore[valid-type]
    """One section `skills` per kind, without n_skills and n_heads."""

    def problems(self) -> Iterator[str]:
        """Yield one sentence per conflict between settings."""
        for number, one in enumerate(self.kinds):
            if getattr(one, "support", "random") != "random":
                yield f"kinds.{number}.support must be random if there are several kinds"


class NoSkills(Section):
    """No skills; for experts that tokens choose (section `moe`)."""

    lacks: ClassVar = dict.fromkeys(("ablates", "stacks"), "the run has no skills, only experts")
    kind: Literal["none"]


class AnyRouter(Section):
    """Settings of all routers."""

    granularity: Literal["model", "stack", "block", "layer", "linear"] = "linear"
    """Layers that share routing weights: all (`model`), or those of a stack, block, layer or
    linear."""


if TYPE_CHECKING:
    Router: TypeAlias = PartSection
    Skills: TypeAlias = PartSection
else:
    Router = parts_of(ROUTERS, AnyRouter)
    Skills = parts_of(SKILLS, AnySkills, Several, NoSkills)


# Number of skills that a router requires.
COUNTS = {
    "skills.n_skills and router.kind = shared and skills.n_skills != 1": "skills.n_skills "
    "({skills.n_skills}) must be 1 with router.kind 'shared'",
    "skills.n_skills and router.kind = private and skills.n_skills != per_task": "skills.n_skills "
    "({skills.n_skills}) must be 'per_task' with router.kind 'private'",
    "skills.n_skills = per_task and router.kind != private|shared|retrieval|none and "
    "aggregation.kind != fusion": "skills.n_skills 'per_task' is for the private router, not "
    "'{router.kind}'",
}


def router_section(kind: str, **settings: Any) -> PartSection:
    """Return the section of a built-in router."""
    return make_section(ROUTERS, AnyRouter, kind, **settings)


def kinds_of(skills: Any) -> list[Any]:
    """Return the sections of all kinds in a section `skills`."""
    if isinstance(skills, NoSkills):
        return []
    return skills.kinds if isinstance(skills, Several) else [skills]


class Mixture(Section):
    """Mixture of the skills, weighted by the router, as `skills.mix` defines."""

    kind: Literal["mixture"] = "mixture"


class Fusion(Section):
    """Attention per token over the frozen skills of an earlier run (AdapterFusion)."""

    kind: Literal["fusion"]
    lacks: ClassVar = {
        "starts": "its skills come from aggregation.source; remove run.start",
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory", "ablates", "stacks"),
            "skills are mixed per token; use the run in aggregation.source",
        ),
    }
    source: str
    """Folder of the run whose skills are fused."""
    query: Literal["output", "input"] = "output"
    """Query of a token: the output of the base layer, or its input."""
    key_size: PositiveInt | None = None
    """Size of queries and keys; by default the layer's output size."""
    value: bool = True
    """Transform the mixture by a matrix initialised as the identity."""
    value_penalty: NonNegative = 0.01
    """Weight of the penalty on that matrix's squared distance from the identity."""


Aggregation = Annotated[Mixture | Fusion, Field(discriminator="kind")]

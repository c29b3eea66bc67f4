"""The methods that are compared: configuration fragments and settings on top of a common file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mttl.io.errors import MttlError

REFERENCE = "polytropon"
MODES = ("all", "zero_shot", "router_only", "skills_only", "average", "from_scratch", "full")


class AdaptationVariant(NamedTuple):
    """A variant of adaptation: its name in tables and folders, and its overrides."""

    name: str
    settings: tuple[str, ...] = ()


# Full fine-tuning diverges at the learning rate of the skills.
MODE_VARIANTS = tuple(
    AdaptationVariant(mode, (f"adapt.mode={mode}", *(("adapt.lr=1e-3",) if mode == "full" else ())))
    for mode in MODES
)
# The routing weights of the trained task with the lowest loss on the new rows.
NEAREST_TASK = AdaptationVariant(
    "nearest_task", ("adapt.mode=zero_shot", "adapt.init=nearest_task")
)
ROW_VARIANTS = (MODE_VARIANTS[0], NEAREST_TASK)
# Routing weights of several heads may be trained without the skills (MHR-z).
HEAD_VARIANTS = tuple(one for one in MODE_VARIANTS if one.name in ("all", "router_only"))


def published(*settings: str) -> tuple[AdaptationVariant, ...]:
    """Return the variants of a baseline whose own one has these settings."""
    return AdaptationVariant("all", settings), NEAREST_TASK


@dataclass(frozen=True)
class Method:
    """One way to train and to adapt; the first of its variants of adaptation is its own."""

    fragment: str  # configuration files merged onto the common one, joined by +
    settings: tuple[str, ...] = ()  # overrides of training
    variants: tuple[AdaptationVariant, ...] = MODE_VARIANTS[:1]
    adapts_by_fragment: bool = False  # the files hold settings of adaptation too, or name classes
    adapt_settings: tuple[str, ...] = ()  # overrides of adaptation


POLYTROPON = "router/polytropon.yaml"
# The router has the learning rate of the skills, in adaptation too.
ONE_SPEED = Method(POLYTROPON, ("optim.router_lr=null",), adapt_settings=("adapt.router_lr=null",))
METHODS: dict[str, Method] = {
    "polytropon": Method(POLYTROPON, variants=(*MODE_VARIANTS, NEAREST_TASK)),
    "shared": Method("router/shared.yaml"),
    # A new task has a private skill …
    "private": Method(
        "router/private.yaml",
        variants=published("adapt.mode=skills_only", "adapt.init=private_skill"),
    ),
    # … or the skills that a matrix names.
    "expert": Method(
        "router/expert.yaml", variants=published("adapt.mode=all", "adapt.init=expert_row")
    ),
    # A network generates its weights: it needs the learning rate of the skills.
    "hyperformer": replace(ONE_SPEED, fragment="router/hyperformer.yaml", variants=ROW_VARIANTS),
    "task_moe": Method("router/task_moe.yaml", variants=ROW_VARIANTS),
    "c_poly": Method("router/c_poly.yaml"),
    "polytropon_ibp": Method("router/polytropon_ibp.yaml"),
    "one_speed": ONE_SPEED,
    **{
        f"multi_head_{n}": Method(POLYTROPON, (f"skills.n_heads={n}",), variants=HEAD_VARIANTS)
        for n in (2, 4, 8)
    },
    "token_top2": Method("router/token_top2.yaml"),
    "token_switch": Method("router/token_switch.yaml"),
}
# Routers without parameters.
FIXED_ROUTERS = ("shared", "private", "average", "random", "expert", "none")
VARIANTS = (*MODES, "nearest_task")


def custom_methods(texts: Sequence[str], modes: Sequence[str]) -> dict[str, Method]:
    """Return the methods that ``NAME=FRAGMENT`` texts define; their files must exist."""
    from mttl.config.load import find_file  # slow to import

    found: dict[str, Method] = {}
    for text in texts:
        name, _, fragment = text.partition("=")
        problem = ""
        if not re.fullmatch(r"\w[\w-]*", name) or not fragment:
            problem = f"'{text}' must have the form NAME=FILE, with a name of letters and digits"
        elif name in METHODS or name in found:
            problem = f"{name}: there is a method of this name; choose another"
        if problem:
            raise MttlError(f"--method {problem}")
        for file in fragment.split("+"):
            find_file(file, suffix=".yaml")
        variants = tuple(one for one in MODE_VARIANTS if one.name in ("all", *modes))
        found[name] = Method(fragment, variants=variants, adapts_by_fragment=True)
    return found


class Plan(NamedTuple):
    """What one method goes through for one seed; fold 0 is the partition as it is."""

    name: str
    seed: int
    variants: tuple[AdaptationVariant, ...] = MODE_VARIANTS[:1]
    fold: int = 0

    def __str__(self) -> str:
        """Return its name in the progress on screen."""
        fold = f"fold {self.fold}, " if self.fold else ""
        return f"{self.name}, {fold}seed {self.seed}"


def plan(
    names: Sequence[str],
    modes: Sequence[str] | None,
    seeds: Sequence[int],
    folds: Sequence[int] = (0,),
    methods: Mapping[str, Method] = METHODS,
) -> list[Plan]:
    """Return what to run: every seed and fold of every method, with its variants of the modes.

    The first seed of all methods comes first, so that a comparison that was stopped early compares.
    Without modes, all variants are taken; a mode that no planned method has is an `MttlError`.
    """
    variants = {
        name: (first, *(one for one in others if modes is None or one.name in modes))
        for name, (first, *others) in ((name, own.variants) for name, own in methods.items())
    }
    had = {one.name for name in names for one in variants[name]}
    for mode in modes or ():
        if mode not in had:
            others = [n for n, own in methods.items() if mode in {one.name for one in own.variants}]
            raise MttlError(
                f"--modes {mode}: none of these methods is adapted so, but {', '.join(others)} are"
            )
    return [
        Plan(name, seed, variants[name], fold)
        for seed in dict.fromkeys(seeds)
        for fold in folds
        for name in dict.fromkeys(names)
    ]

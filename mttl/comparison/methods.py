"""The methods that are compared: configuration fragments and settings on top of a common file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mttl.config.section import AS_TRAINED, FREE
from mttl.errors import MttlError

REFERENCE = "polytropon"
MODES = ("all", "zero_shot", "router_only", "skills_only", "average", "from_scratch", "full")
# The whole model breaks at the rate that skills bear.
MODE_SETTINGS = {"full": ("adapt.lr=1e-3",)}


@dataclass(frozen=True)
class Way:
    """A way to adapt a trained inventory.

    Args:
        name: In tables and folders; ``"all"`` is that of every method.
        settings: Overrides of adaptation.
    """

    name: str
    settings: tuple[str, ...]

    @property
    def trains(self) -> bool:
        """Whether it has a learning rate."""
        return "adapt.mode=zero_shot" not in self.settings

    @property
    def sets_rate(self) -> bool:
        """Whether it has a learning rate of its own, whatever is trained."""
        return any(setting.startswith("adapt.lr=") for setting in self.settings)

    @property
    def starts_apart(self) -> bool:
        """Whether new tasks without any rows start otherwise than at the mean row.

        Without rows nothing tells as which trained task to begin.
        """
        alike = [f"adapt.init={init}" for init in ("mean", *AS_TRAINED)]
        starts = [setting for setting in self.settings if setting.startswith("adapt.init=")]
        return any(start not in alike for start in starts)

    def with_examples(self, n_examples: int) -> "Way":
        """Return the same way with so many training rows."""
        settings = (*self.settings, f"adapt.examples={n_examples}")
        return Way(f"{self.name}-{n_examples}", settings)


MODE_WAYS = tuple(Way(mode, (f"adapt.mode={mode}", *MODE_SETTINGS.get(mode, ()))) for mode in MODES)
MEAN_ROW = Way("mean_row", ("adapt.mode=all", "adapt.init=mean"))
# Full fine-tuning of the backbone, with nothing of the inventory.
BARE_FULL = Way("bare_full", ("adapt.mode=full", "adapt.init=own", *MODE_SETTINGS["full"]))
FRESH_ROW = Way("fresh_row", ("adapt.mode=all", "adapt.init=fresh"))
# The row of the trained task that explains the new rows best: as it is, or to begin with.
BEST_ROW = Way("best_row", ("adapt.mode=zero_shot", "adapt.init=best_row"))
FROM_BEST_ROW = Way("from_best_row", ("adapt.mode=all", "adapt.init=best_row"))
# Adapted twice, from that row and from the mean: what is better on development rows.
TWO_STARTS = Way("two_starts", ("adapt.mode=all", "adapt.init=two_starts"))
# A row of Polytropon's, learned over skills that another router has trained.
LEARNED_ROW = Way("learned_row", ("adapt.mode=router_only", "adapt.init=learned"))
# Free coefficients of the skills, from 1 / K or as the best trained task, by small steps.
FREE_WAYS = tuple(
    Way(init, ("adapt.mode=router_only", f"adapt.init={init}", "adapt.router_lr=2e-2"))
    for init in FREE
)
# As published: a new task has a skill of its own …
PRIVATE_WAYS = (
    Way("all", ("adapt.mode=skills_only", "adapt.init=own")),
    *(BEST_ROW, FROM_BEST_ROW, LEARNED_ROW, *FREE_WAYS, MEAN_ROW),
)
# … or those that a person gives it.
EXPERT_WAYS = (
    Way("all", ("adapt.mode=all", "adapt.init=matrix")),
    Way("given_row", ("adapt.mode=zero_shot", "adapt.init=matrix")),
    *(BEST_ROW, FROM_BEST_ROW, LEARNED_ROW, *FREE_WAYS, MEAN_ROW),
)
# A method whose new rows begin at the best one.
ROW_WAYS = (MODE_WAYS[0], BEST_ROW, MEAN_ROW, TWO_STARTS)
# Rows of several heads say much, and may do without the skills' change (MHR-z).
HEAD_WAYS = (*(way for way in MODE_WAYS if way.name in ("all", "router_only")), *FREE_WAYS)


@dataclass(frozen=True)
class Method:
    """One way to train and to adapt.

    Args:
        fragment: Configuration file merged onto the common one; several are joined by ``+``.
        settings: Overrides of training.
        one_speed: Give the router the learning rate of the skills, in adaptation too.
        ways: How its inventory can be adapted; the first is the method's own.
        adapts_by_fragment: Whether the file holds settings of adaptation too, or names classes.
        rate: Factor on the learning rate of adaptation.
        adapt_settings: Overrides of adaptation.
    """

    fragment: str
    settings: tuple[str, ...] = ()
    one_speed: bool = False
    ways: tuple[Way, ...] = MODE_WAYS[:1]
    adapts_by_fragment: bool = False
    rate: float = 1.0
    adapt_settings: tuple[str, ...] = ()

    def training(self) -> list[str]:
        """Return the overrides of training."""
        return [*self.settings, *(["optim.router_lr=null"] if self.one_speed else [])]

    def adaptation(self, lr: float) -> list[str]:
        """Return the overrides of adaptation."""
        own = [f"adapt.lr={self.rate * lr}"] if self.rate != 1 else []
        one_speed = [f"adapt.router_lr={lr}"] if self.one_speed else []
        return [*own, *one_speed, *self.adapt_settings]


def _polytropon(*settings: str, ways: tuple[Way, ...] = MODE_WAYS[:1]) -> Method:
    return Method("router/polytropon.yaml", settings, ways=ways)


UNBALANCED = ("moe.balance.switch=0", "moe.balance.z=0")
METHODS: dict[str, Method] = {
    "polytropon": _polytropon(ways=(*MODE_WAYS, *ROW_WAYS[1:], *FREE_WAYS, FRESH_ROW, BARE_FULL)),
    "shared": Method("router/shared.yaml"),
    "private": Method("router/private.yaml", ways=PRIVATE_WAYS),
    "expert": Method("router/expert.yaml", ways=EXPERT_WAYS),
    # A network makes its weights: it learns at the pace of the skills.
    "hyperformer": Method("router/hyperformer.yaml", one_speed=True, ways=ROW_WAYS),
    "task_moe": Method("router/task_moe.yaml", ways=ROW_WAYS),
    "c_poly": Method("router/c_poly.yaml"),
    "polytropon_ibp": Method("router/polytropon_ibp.yaml"),
    "one_speed": Method("router/polytropon.yaml", one_speed=True),
    "multi_head_2": _polytropon("skills.n_heads=2", ways=HEAD_WAYS),
    "multi_head_4": _polytropon("skills.n_heads=4", ways=HEAD_WAYS),
    "multi_head_8": _polytropon("skills.n_heads=8", ways=HEAD_WAYS),
    "token_top2": Method("router/token_top2.yaml"),
    "token_switch": Method("router/token_switch.yaml"),
}
ABLATIONS: dict[str, Method] = {
    "n_skills_2": _polytropon("skills.n_skills=2"),
    "n_skills_4": _polytropon("skills.n_skills=4"),
    "n_skills_16": _polytropon("skills.n_skills=16"),
    "multi_head_8_of_32": _polytropon("skills.n_skills=32", "skills.n_heads=8", ways=HEAD_WAYS),
    "granularity_model": _polytropon("router.granularity=model"),
    "granularity_block": _polytropon("router.granularity=block"),
    # One skill with the parameters of all eight.
    "shared_rank_128": Method("router/shared.yaml", ("skills.rank=128",)),
    "shared_skill": _polytropon("router.shared_skill=true"),
    "annealed": _polytropon("router.final_temperature=0.1"),
    "no_noise": _polytropon("router.relaxed=false"),
    "token_top2_unbalanced": Method("router/token_top2.yaml", UNBALANCED),
    "token_switch_unbalanced": Method("router/token_switch.yaml", UNBALANCED),
    "token_prior": Method("router/token_prior.yaml"),
    "token_hybrid": Method("router/token_hybrid.yaml"),
}
ALL = METHODS | ABLATIONS
# What these have instead of a learned router has no parameters.
FIXED_ROUTERS = ("shared", "private", "average", "random", "expert", "none")
# The ways that --modes names, beside the one of every method.
WAYS = tuple(dict.fromkeys(way.name for method in ALL.values() for way in method.ways))
DEFAULT_WAYS = (*MODES, "best_row")


def own_methods(texts: Sequence[str], modes: Sequence[str]) -> dict[str, Method]:
    """Return the methods that ``NAME=FRAGMENT`` stand for.

    Args:
        texts: Of the command line.
        modes: Further ways to adapt them.

    Raises:
        MttlError: If one has another form, its name is taken, or there is no such file.
    """
    from mttl.config.load import find_file  # slow to import

    found: dict[str, Method] = {}
    for text in texts:
        name, _, fragment = text.partition("=")
        if not re.fullmatch(r"\w[\w-]*", name) or not fragment:
            raise MttlError(
                f"--method '{text}' must have the form NAME=FILE, a name of letters and digits and "
                "a configuration file, such as mine=my_router.yaml"
            )
        if name in ALL or name in found:
            raise MttlError(f"--method {name}: there is a method of this name; choose another")
        for file in fragment.split("+"):
            find_file(file, suffix=".yaml")
        ways = (MODE_WAYS[0], *(way for way in MODE_WAYS[1:] if way.name in modes))
        found[name] = Method(fragment, ways=ways, adapts_by_fragment=True)
    return found


@dataclass(frozen=True)
class Plan:
    """What one method has to go through, for one seed.

    Args:
        name: The method's name.
        seed: Seed of training and of adaptation.
        ways: How it is adapted.
        fold: Which tasks are unseen, from 1; 0 takes those of the partition.
    """

    name: str
    seed: int
    ways: tuple[Way, ...] = MODE_WAYS[:1]
    fold: int = 0

    def __str__(self) -> str:
        """Name it for the progress on screen."""
        fold = f"fold {self.fold}, " if self.fold else ""
        return f"{self.name}, {fold}seed {self.seed}"


def plan(
    names: Sequence[str],
    modes: Sequence[str],
    seeds: Sequence[int],
    folds: Sequence[int] = (0,),
    methods: Mapping[str, Method] = ALL,
) -> list[Plan]:
    """Return what to run: every seed and fold of every method, with the ways that it has.

    The first seed of all methods comes first, so that a comparison that was stopped early compares.

    Args:
        names: Methods.
        modes: Further ways to adapt, of the methods that have them.
        seeds: Seeds.
        folds: Numbers of folds; 0 takes the partition as it is.
        methods: What the names stand for.
    """
    ways = {
        name: (own.ways[0], *(way for way in own.ways[1:] if way.name in modes))
        for name, own in methods.items()
    }
    return [
        Plan(name, seed, ways[name], fold)
        for seed in dict.fromkeys(seeds)
        for fold in folds
        for name in dict.fromkeys(names)
    ]


def check_modes(modes: Sequence[str], plans: Sequence[Plan]) -> None:
    """Refuse further ways to adapt that none of the methods has.

    Args:
        modes: Of the command line.
        plans: What will run.

    Raises:
        MttlError: If there is one, with the methods that ship and have it.
    """
    had = {way.name for item in plans for way in item.ways}
    for mode in modes:
        if mode not in had:
            names = [name for name, method in ALL.items() if mode in {x.name for x in method.ways}]
            raise MttlError(
                f"--modes {mode}: none of these methods is adapted so; leave it out, or add one of "
                f"{', '.join(names)} with --methods"
            )

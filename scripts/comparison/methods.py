"""The methods that are compared: configuration fragments and settings on top of a common file."""

from dataclasses import dataclass, field

from mttl.errors import MttlError

REFERENCE = "polytropon"


@dataclass(frozen=True)
class Method:
    """One way to train and to adapt.

    Args:
        fragment: Configuration file merged onto the common one.
        settings: Overrides of training.
        one_speed: Give the router the learning rate of the skills, in adaptation too.
    """

    fragment: str
    settings: tuple[str, ...] = ()
    one_speed: bool = False

    def training(self) -> list[str]:
        """Return the overrides of training."""
        return [*self.settings, *(["optim.router_lr=null"] if self.one_speed else [])]

    def adaptation(self, lr: float) -> list[str]:
        """Return the overrides of adaptation."""
        return [f"adapt.router_lr={lr}"] if self.one_speed else []


def _polytropon(*settings: str) -> Method:
    return Method("router/polytropon.yaml", settings)


UNBALANCED = ("moe.balance.switch=0", "moe.balance.z=0")
METHODS: dict[str, Method] = {
    "polytropon": _polytropon(),
    "shared": Method("router/shared.yaml"),
    "private": Method("router/private.yaml"),
    "expert": Method("router/expert.yaml"),
    # A network makes its weights: it learns at the pace of the skills.
    "hyperformer": Method("router/hyperformer.yaml", one_speed=True),
    "task_moe": Method("router/task_moe.yaml"),
    "polytropon_ibp": Method("router/polytropon_ibp.yaml"),
    "one_speed": Method("router/polytropon.yaml", one_speed=True),
    "multi_head_2": _polytropon("skills.n_heads=2"),
    "multi_head_4": _polytropon("skills.n_heads=4"),
    "multi_head_8": _polytropon("skills.n_heads=8"),
    "token_top2": Method("router/token_top2.yaml"),
    "token_switch": Method("router/token_switch.yaml"),
}
ABLATIONS: dict[str, Method] = {
    "n_skills_2": _polytropon("skills.n_skills=2"),
    "n_skills_4": _polytropon("skills.n_skills=4"),
    "n_skills_16": _polytropon("skills.n_skills=16"),
    "granularity_model": _polytropon("router.granularity=model"),
    "granularity_block": _polytropon("router.granularity=block"),
    "token_top2_unbalanced": Method("router/token_top2.yaml", UNBALANCED),
    "token_switch_unbalanced": Method("router/token_switch.yaml", UNBALANCED),
    "token_prior": Method("router/token_prior.yaml"),
    "token_hybrid": Method("router/token_hybrid.yaml"),
}
ALL = METHODS | ABLATIONS
# The whole model breaks at the rate that skills bear.
MODE_SETTINGS = {"full": ("adapt.lr=1e-3",)}
# What these have instead of a learned router has no parameters.
FIXED_ROUTERS = ("shared", "private", "average", "expert", "none")
MODES = ("all", "zero_shot", "router_only", "skills_only", "average", "from_scratch", "full")


@dataclass(frozen=True)
class Plan:
    """What one method has to go through, for one seed.

    Args:
        name: The method's name.
        seed: Seed of training and of adaptation.
        modes: Adaptation modes.
    """

    name: str
    seed: int
    modes: tuple[str, ...] = field(default=("all",))


def plan(names: list[str], modes: list[str], seeds: list[int]) -> list[Plan]:
    """Return what to run: every seed of every method, and all modes on top of the reference.

    The first seed of all methods comes first, so that a comparison that was stopped early compares.

    Args:
        names: Methods.
        modes: Modes of the reference beside ``all``, which every method is adapted with.
        seeds: Seeds.

    Raises:
        MttlError: If the reference is missing, to which the differences are taken.
    """
    if REFERENCE not in names:
        raise MttlError(f"--methods must contain {REFERENCE}: differences are taken to it")
    extra = tuple(mode for mode in modes if mode != "all")
    return [
        Plan(name, seed, ("all", *extra) if name == REFERENCE else ("all",))
        for seed in dict.fromkeys(seeds)
        for name in dict.fromkeys(names)
    ]

"""The section ``moe``: experts that tokens choose."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from mttl.config.plugin_section import PartSection, PluginKinds, PluginSection, part_model, parts_of
from mttl.config.section import NonNegative, Section, once
from mttl.plugins.classes import SKILLS, TOKEN_ROUTERS

Stack = Literal["encoder", "decoder", "model"]


if TYPE_CHECKING:
    TokenRouting: TypeAlias = PartSection
else:
    TokenRouting = parts_of(TOKEN_ROUTERS, Section)


class UpcycledExperts(Section):
    """Copies of the backbone's feed-forward blocks, whose place they take (sparse upcycling)."""

    kind: Literal["feed_forward"]


LoRAExperts: Any = part_model(replace(SKILLS, name="experts"), "lora", Section)


class IA3Experts(Section):
    """Rescale the output of linear layers."""

    kind: Literal["ia3"]


class AdapterExperts(Section):
    """Bottleneck adapters beside feed-forward blocks."""

    kind: Literal["adapter"]
    hidden_features: PositiveInt = 64
    """Width of the bottleneck."""


TokenExperts = Annotated[
    UpcycledExperts | LoRAExperts | IA3Experts | AdapterExperts,
    Field(discriminator="kind"),
    PluginKinds(SKILLS),
]
# Routers among members of a library, which exist already.
MEMBERS = ("arrow", "spectral", "phatgoose")
BLOCK_EXPERTS = ("feed_forward", "adapter")


class Balancing(Section):
    """What keeps experts in use: coefficients of losses per layer, all off by default."""

    switch: NonNegative = 0.0
    """Share of tokens times mean probability, times E (Switch Transformer); 1e-2 is usual."""
    gshard: NonNegative = 0.0
    """Share of first choices times mean probability (GShard)."""
    importance: NonNegative = 0.0
    """Squared coefficient of variation of the sums of gates (Shazeer et al.)."""
    load: NonNegative = 0.0
    """The same of the estimated loads; needs the router noisy_top_k."""
    z: NonNegative = 0.0
    """Squared log-sum-exp of the logits (ST-MoE); 1e-3 is usual."""
    entropy: NonNegative = 0.0
    """Entropy of a token's probabilities, less that of their mean."""
    bias: NonNegative = 0.0
    """Without a loss: after each step, move a bias of each expert by this against its load."""
    global_statistics: bool = False
    """Take the statistics over all processes rather than each one's own."""


class MoE(Section):
    """Layers whose tokens choose experts."""

    asks: ClassVar = {
        "routes_tokens": "router",
        "weighs_experts": "task_prior",
        "shares_experts": "parallel",
    }
    lacks: ClassVar = {
        "packs": "token routers find padding and the task of a token by row, and a packed row has "
        "several; leave data.packed_length out",
        "starts": "a run to start from has no experts of it; leave run.start out",
        "scales_losses": ("parallel", "processes would leave out different steps; use bf16-mixed"),
        "has_heads": ("task_prior", "it takes whole rows; set skills.n_heads: 1"),
        "takes_signed_weights": (
            "task_prior = logits",
            "it takes logarithms, and rows of that router may be negative; use another",
        ),
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory"),
            "tokens choose its experts, and no weights of a task stand for them; answer with the "
            "run itself (mttl predict, mttl serve)",
        ),
    }

    router: TokenRouting
    """How tokens choose."""
    experts: TokenExperts
    """What an expert is."""
    n_experts: Annotated[int, Field(ge=2)] = 8
    """Experts of each layer."""
    targets: Annotated[list[str], Field(min_length=1)] = ["mlp"]
    """Linear layers as for `skills.targets` (lora, ia3); else blocks: all, or patterns of paths."""
    every: PositiveInt = 1
    """Only every n-th block of the backbone."""
    stacks: Annotated[list[Stack], Field(min_length=1), AfterValidator(once)] | None = None
    """Only these stacks; a decoder-only backbone is one, `model`."""
    capacity_factor: PositiveFloat | None = None
    """Room of an expert while training, in even shares of the load; by default there is enough."""
    eval_capacity_factor: PositiveFloat | None = None
    """The same in evaluation."""
    balance: Balancing = Balancing()
    """What keeps experts in use."""
    shared_expert: bool = False
    """Add an expert that is always on."""
    task_prior: Literal["none", "logits", "mask"] = "none"
    """Rows of the task router as logits added to the gates, or as a mask of allowed experts."""
    parallel: bool = False
    """Share the experts of every layer out among the processes of training; files are the same."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        problems = [*self._router_problems(), *self._balance_problems()]
        if self.shared_expert and self.experts.kind == "ia3":
            problems.append("shared_expert is not for ia3, which rescales an output: drop it")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def problem_of(self, n_processes: int) -> str | None:
        """Return why so many processes cannot share the experts out, or None."""
        if n_processes == 1:
            return (
                "moe.parallel shares experts out among processes, and one process trains: set "
                "moe.parallel: false, or trainer.devices to 2 or more"
            )
        if self.n_experts % n_processes:
            return (
                f"moe.n_experts ({self.n_experts}) must be a multiple of the number of processes "
                f"({n_processes}) with moe.parallel"
            )
        return None

    def _router_problems(self) -> list[str]:
        router, problems = self.router, []
        known = not isinstance(router, PluginSection) and router.kind not in MEMBERS
        top_k = getattr(router, "top_k", 1) if known else 1
        if top_k > self.n_experts:
            problems.append(f"router.top_k ({top_k}) must not exceed n_experts ({self.n_experts})")
        if known and getattr(router, "normalise", False) and top_k == 1:
            problems.append(
                "router.normalise with top_k 1 makes every gate 1, and nothing is learned: set "
                "normalise: false, or kind: switch"
            )
        if router.kind in MEMBERS and self.experts.kind != "lora":
            problems.append(
                f"router '{router.kind}' reads the factors of its experts: set experts.kind: lora, "
                f"not '{self.experts.kind}'"
            )
        if self.parallel and getattr(self.experts, "shared_down", False):
            problems.append(
                "parallel shares out experts, and with experts.shared_down they have a tensor in "
                "common: set one of them to false"
            )
        full = router.kind in ("expert_choice", "base")
        if full and (self.capacity_factor or (router.kind != "base" and self.eval_capacity_factor)):
            problems.append(f"router '{router.kind}' fills every expert evenly: no capacity_factor")
        return problems

    def _balance_problems(self) -> list[str]:
        kind, balance, problems = self.router.kind, self.balance, []
        given = [name for name, value in balance if value and name != "global_statistics"]
        if balance.load and kind != "noisy_top_k":
            problems.append(f"balance.load needs the router noisy_top_k, not '{kind}'")
        if balance.bias and kind not in ("top_k", "switch"):
            problems.append(f"balance.bias needs the router top_k or switch, not '{kind}'")
        if kind in ("expert_choice", "base", "hash", *MEMBERS):
            reason = "learns nothing" if kind == "hash" else "fills every expert evenly"
            if kind in MEMBERS:
                reason = "takes members of a library as they are"
            problems += [
                f"balance.{name} is not for the router '{kind}', which {reason}: set it to 0"
                for name in given
                if name not in ("load", "bias")
            ]
        if balance.global_statistics and not set(given) - {"bias", "z"}:
            problems.append("balance.global_statistics needs a loss over the loads of experts")
        return problems

"""The section ``moe``: experts that tokens choose."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from mttl.config.plugin_section import PartSection, PluginKinds, part_model, part_models, parts_of
from mttl.config.section import Section, once
from mttl.plugins.classes import SKILLS, TOKEN_ROUTERS
from mttl.plugins.part_settings import NonNegative

Stack = Literal["encoder", "decoder", "model"]


if TYPE_CHECKING:
    TokenRouting: TypeAlias = PartSection
else:
    TokenRouting = parts_of(TOKEN_ROUTERS, Section)


class UpcycledExperts(Section):
    """Copies of the backbone's feed-forward blocks, whose place they take (sparse upcycling)."""

    lacks: ClassVar = {"has_factors": "it has none; set its kind to lora"}
    attachment_point: ClassVar = "block"
    kind: Literal["feed_forward"]


EXPERTS = replace(SKILLS, name="experts")
LoRAExperts: Any = part_model(EXPERTS, "lora", Section)
if TYPE_CHECKING:
    TokenExperts: TypeAlias = PartSection
else:
    TokenExperts = Annotated[
        Union[UpcycledExperts, *part_models(EXPERTS, Section)],
        Field(discriminator="kind"),
        PluginKinds(SKILLS),
    ]


class Balancing(Section):
    """What keeps experts in use: coefficients of losses per layer, all off by default."""

    asks: ClassVar = {"estimates_load": "load", "takes_bias": "bias", "balances": "given"}
    refuses: ClassVar = {
        "global_statistics and not over_loads": "global_statistics needs a loss over the loads of "
        "experts"
    }
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

    @property
    def given(self) -> list[str]:
        """The losses that are on, but for that of the estimated load."""
        others = ("load", "bias", "global_statistics")
        return [name for name, value in self if value and name not in others]

    @property
    def over_loads(self) -> bool:
        """Whether a loss is over the loads of experts."""
        return bool(self.load or {*self.given} - {"z"})


class MoE(Section):
    """Layers whose tokens choose experts."""

    asks: ClassVar = {
        "routes_tokens": "router",
        "weighs_experts": "task_prior",
        "shares_experts": "parallel",
        "gives_zeros": "task_prior = mask",
        "drops_tokens": "capacity_factor",
        "drops_evaluated_tokens": "eval_capacity_factor",
    }
    lacks: ClassVar = {
        "packs": "a packed row has several tasks, and token routers know rows by one",
        "starts": "a run to start from has no experts of it; leave run.start out",
        "scales_losses": ("parallel", "processes would leave out different steps; use bf16-mixed"),
        "has_heads": ("task_prior", "it takes whole rows; set skills.n_heads: 1"),
        "takes_signed_weights": (
            "task_prior = logits",
            "it takes logarithms, and rows of that router may be negative",
        ),
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory"),
            "tokens choose its experts; answer with the run itself (mttl predict, mttl serve)",
        ),
    }
    refuses: ClassVar = {
        "shared_expert and experts.kind = ia3": "shared_expert is not for ia3, which rescales an "
        "output",
        "router.top_k > n_experts": "router.top_k ({router.top_k}) must not exceed n_experts "
        "({n_experts})",
        "parallel and experts.shared_down": "parallel shares out experts, and with "
        "experts.shared_down they have a tensor in common",
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

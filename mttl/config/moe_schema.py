"""Section ``moe``: layers with experts for single tokens (mixture of experts)."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from mttl.config.plugin_section import PartSection, PluginKinds, part_model, part_models, parts_of
from mttl.config.section import Section, once
from mttl.plugins.classes import SKILLS, TOKEN_ROUTERS
from mttl.plugins.part_settings import Fraction, NonNegative

Stack = Literal["encoder", "decoder", "model"]

if TYPE_CHECKING:
    TokenRouting: TypeAlias = PartSection
else:
    TokenRouting = parts_of(TOKEN_ROUTERS, Section)


class UpcycledExperts(Section):
    """Copies of the backbone's feed-forward blocks as experts (sparse upcycling)."""

    lacks: ClassVar = {
        "has_factors": "they have no low-rank factors; set {path}.kind: lora",
        "policies": "a policy has no feed-forward blocks to copy; set {path}.kind: adapter",
    }
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
    """Coefficients of load-balancing losses per layer, all 0 by default."""

    asks: ClassVar = {"estimates_load": "load", "takes_bias": "bias", "balances": "given"}
    refuses: ClassVar = {
        "global_statistics and not over_loads": "global_statistics needs a loss over expert loads: "
        "set one of switch, gshard, importance, load, entropy"
    }
    switch: NonNegative = 0.0
    """Weight of E · Σ fraction of tokens × mean probability (Switch Transformer); 1e-2 is usual."""
    gshard: NonNegative = 0.0
    """Weight of Σ fraction of first choices × mean probability (GShard)."""
    importance: NonNegative = 0.0
    """Weight of the squared coefficient of variation of summed gates (Shazeer et al.)."""
    load: NonNegative = 0.0
    """Weight of the squared coefficient of variation of estimated loads; needs router
    noisy_top_k."""
    z: NonNegative = 0.0
    """Weight of the squared log-sum-exp of the logits (ST-MoE); 1e-3 is usual."""
    entropy: NonNegative = 0.0
    """Weight of the entropy of each token's probabilities minus the entropy of their mean."""
    localised: NonNegative = 0.0
    """Weight of the variation of probabilities over experts and examples (LoRAMoE). It prefers the
    experts that the task router gives a task; needs task_prior `balance`."""
    delta: Fraction = 0.1
    """Strength of that preference, from 0 (none) to 1."""
    bias: NonNegative = 0.0
    """Loss-free balancing: step by which each expert's bias moves against its load."""
    global_statistics: bool = False
    """Compute the statistics over all processes instead of within each."""

    @property
    def given(self) -> list[str]:
        """Active losses, without that of the estimated load."""
        others = ("load", "bias", "delta", "global_statistics")
        return [name for name, value in self if value and name not in others]

    @property
    def over_loads(self) -> bool:
        """True if a loss over the expert loads is active."""
        return bool(self.load or {*self.given} - {"z", "localised"})


class AnyMoE(Section):
    """Experts that tokens choose; in a policy, tokens are the grid positions of a view."""

    asks: ClassVar = {
        "routes_tokens": "router",
        "drops_tokens": "capacity_factor",
        "drops_evaluated_tokens": "eval_capacity_factor",
    }
    lacks: ClassVar = {
        "exports_policy": "exported code has no experts; use the run itself",
        "plays": ("capacities", "an action depends on the other frames; remove these limits"),
    }
    refuses: ClassVar = {
        "router.top_k > n_experts": "router.top_k ({router.top_k}) must not exceed n_experts "
        "({n_experts})",
        "balance.localised and task_prior != balance": "balance.localised needs the experts of "
        "each task; set task_prior: balance, which text models have",
    }
    router: TokenRouting
    """Token router."""
    experts: TokenExperts
    """Kind of expert."""
    n_experts: Annotated[int, Field(ge=2)] = 8
    """Experts per layer."""
    capacity_factor: PositiveFloat | None = None
    """Expert capacity in training, relative to an even load; by default unlimited."""
    eval_capacity_factor: PositiveFloat | None = None
    """Expert capacity in evaluation, likewise."""
    balance: Balancing = Balancing()
    """Load-balancing losses."""
    shared_expert: bool = False
    """Add an expert that processes every token."""

    @property
    def capacities(self) -> list[str]:
        """The limits of an expert's load that are set."""
        return [name for name in ("capacity_factor", "eval_capacity_factor") if getattr(self, name)]


class MoE(AnyMoE):
    """Mixture-of-experts layers: each token is routed to experts."""

    asks: ClassVar = {
        "weighs_experts": "task_prior",
        "shares_experts": "parallel",
        "gives_zeros": "task_prior = mask|balance",
    }
    lacks: ClassVar = {
        "packs": "token routers need one task per sequence; remove data.packed_length",
        "stacks": "tokens choose its experts; name a run with skills of tasks",
        "starts": "run.start loads skills, but no experts; remove run.start or the section moe",
        "scales_losses": ("parallel", "steps would differ; set trainer.precision: bf16-mixed"),
        "has_heads": ("task_prior", "experts have no heads; set skills.n_heads: 1"),
        "takes_signed_weights": (
            "task_prior = logits",
            "logarithms need positive weights; change router.kind, or set moe.task_prior: none",
        ),
        **dict.fromkeys(
            ("merges", "averages", "exports_lora", "exports_inventory"),
            "tokens choose experts; use the run itself (mttl predict, mttl serve)",
        ),
    }
    refuses: ClassVar = {
        "shared_expert and experts.kind = ia3": "shared_expert does not work with experts.kind "
        "ia3, which rescales outputs; set shared_expert: false",
        "task_prior = balance and not balance.localised": "task_prior 'balance' needs the loss "
        "balance.localised; set its weight",
        "n_experts_at and task_prior": "n_experts_at does not work with task_prior "
        "('{task_prior}'), which has one weight per expert for all layers; remove one of them",
        "n_experts_at and parallel": "n_experts_at does not work with parallel; remove one of them",
        "parallel and experts.shared_down": "parallel distributes experts over processes, but "
        "experts.shared_down gives them a common tensor; turn one of them off",
    }
    n_experts_at: dict[str, Annotated[int, Field(ge=2)]] = {}
    """Numbers of experts of the layers that match patterns of paths; the first match counts."""
    targets: Annotated[list[str], Field(min_length=1)] = ["mlp"]
    """Linear layers as in `skills.targets` (lora, ia3); otherwise blocks: all, or patterns of
    paths."""
    every: PositiveInt = 1
    """Interval between backbone blocks with experts; 1: every block."""
    stacks: Annotated[list[Stack], Field(min_length=1), AfterValidator(once)] | None = None
    """Stacks with experts; a decoder-only backbone has one stack, `model`."""
    task_prior: Literal["none", "logits", "mask", "balance"] = "none"
    """Task routing weights as logits added to the gates, as a mask of allowed experts, or as those
    that `balance.localised` prefers."""
    parallel: bool = False
    """Distribute each layer's experts over the training processes; checkpoints are unaffected."""

"""Inventories of every kind, routers of every kind, and models that have both."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helpers.backbones import fill
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing import (
    AverageRouter,
    CategoricalRouter,
    CoefficientRouter,
    CPolyRouter,
    ExpertRouter,
    HyperFormerRouter,
    MetadataRouter,
    PolytroponRouter,
    RandomRouter,
    RoutingSlot,
    ScoreFunctionRouter,
    TaskMoERouter,
    TaskRouter,
)
from mttl.skills import (
    KINDS,
    AdapterInventory,
    Attachment,
    BitFitInventory,
    CompacterInventory,
    DenseInventory,
    DiffPruningInventory,
    DoRAInventory,
    HeadMaskInventory,
    IA3Inventory,
    IntrinsicInventory,
    Inventory,
    InvertibleInventory,
    KronABlockInventory,
    KronAInventory,
    LadderInventory,
    LoRAInventory,
    NormInventory,
    PrefixInventory,
    PromptInventory,
    SkilledModel,
    SparseAdapterInventory,
    SparseInventory,
    SupermaskInventory,
    VeRAInventory,
    attach_skills,
)
from mttl.skills.gated import GatedInventory

RANK = 2


def _seeded(kind: type[Inventory]) -> type[Inventory]:
    """Return a kind that draws the same supports every time, as all parameters are the same."""

    class _Seeded(kind):  # type: ignore[misc,valid-type]
        def __init__(self, *sizes: int, **settings: Any) -> None:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                super().__init__(*sizes, **settings)

    return _Seeded


class _StackedAdapter(AdapterInventory):
    """One with two stages, whatever the number of skills."""

    def __init__(self, n_in: int, n_out: int, n_skills: int, **settings: Any) -> None:
        stages = (1, n_skills - 1)
        super().__init__(n_in, n_out, n_skills, parallel=False, stages=stages, **settings)


class GatedPrefix(GatedInventory):
    """One behind a gate that reads hidden states."""

    attachment_point = PrefixInventory.attachment_point

    def __init__(self, *sizes: int, n_heads: int = 1) -> None:
        super().__init__(PrefixInventory(*sizes, length=4, n_heads=n_heads))


# What makes a kind from (in_features, out_features, n_skills, n_heads=1).
Make = Callable[..., Inventory]
INVENTORIES: dict[str, Make] = {
    "lora-factors": partial(LoRAInventory, rank=RANK, mix="factors"),
    "lora-deltas": partial(LoRAInventory, rank=RANK, mix="deltas"),
    "lora-outputs": partial(LoRAInventory, rank=RANK, mix="outputs"),
    "ia3": IA3Inventory,
    "bitfit": BitFitInventory,
    "krona-deltas": partial(KronAInventory, mix="deltas"),
    # In training masks are drawn.
    "diff_pruning": lambda *sizes, **heads: DiffPruningInventory(*sizes, **heads).eval(),
    "intrinsic": partial(IntrinsicInventory, dimension=5),
    "intrinsic-dense": partial(IntrinsicInventory, dimension=5, vector="layer", projection="dense"),
    "dense-deltas": DenseInventory,
    "sparse-deltas": partial(_seeded(SparseInventory), mix="deltas", sparsity=0.7),
    "sparse-outputs": partial(_seeded(SparseInventory), mix="outputs", sparsity=0.7),
}
# Kinds with an attachment point of their own, which may give further sizes.
_SPARSE = partial(_seeded(SparseAdapterInventory), hidden_features=6, sparsity=0.6)
PLACED: dict[str, Make] = {
    "head_mask": partial(HeadMaskInventory, start=0.05),
    "head_mask, soft": partial(HeadMaskInventory, hard=False),
    "norm": NormInventory,
    "prefix": partial(PrefixInventory, length=3),
    "prefix, joint": partial(PrefixInventory, length=2, gated=False),
    "prefix, behind a gate": GatedPrefix,
    "prefix, computed": partial(PrefixInventory, length=2, gated=False, bottleneck=5),
    "prompt": partial(PromptInventory, length=3),
    "ipt": partial(_seeded(KINDS["ipt"]), dimension=5, hidden_features=6, length=3),
    "adapter, behind": partial(
        AdapterInventory, hidden_features=3, parallel=False, activation="gelu"
    ),
    "adapter, outputs": partial(
        AdapterInventory, hidden_features=3, scale=2.0, layer_norm=True, mix="outputs"
    ),
    "invertible": partial(InvertibleInventory, activation="gelu"),
    "ladder": partial(LadderInventory, side_features=5, activation="gelu"),
    "compacter": partial(CompacterInventory, hidden_features=4, n_products=2, scale=2.0),
    "sparse_adapter": partial(_SPARSE, parallel=False),
    "adapter, stacked": partial(_StackedAdapter, hidden_features=3, activation="gelu"),
    "krona_block": partial(KronABlockInventory, scale=0.5),
}
# Kinds that take no heads, or need the base layer's weight.
_COMPACTER = partial(CompacterInventory, hidden_features=4, n_products=2, shared=False)
OTHERS: dict[str, Make] = {
    "lora, all at once": lambda i, o, k: LoRAInventory(i, o, k, rank=i // k, scale=0.3),
    "lora, by expert": lambda i, o, k: LoRAInventory(i, o, k, rank=i, scale=0.3),
    "adapter": partial(AdapterInventory, hidden_features=3),
    "adapter, behind": PLACED["adapter, behind"],
    "adapter, outputs": PLACED["adapter, outputs"],
    "compacter": partial(_COMPACTER, rank=2, scale=2.0),
    "compacter, outputs": partial(_COMPACTER, rank=None, mix="outputs"),
    "sparse_adapter": _SPARSE,
    "sparse_adapter, outputs": partial(_SPARSE, scale=2.0, mix="outputs"),
    "krona-factors": partial(KronAInventory, scale=0.5),
    "krona_block": lambda i, o, k: KronABlockInventory(i, o, k, scale=0.5, residual=i == o),
    "head_mask": lambda i, o, k: PLACED["head_mask"](i, o, k, 4),
    "head_mask, soft": lambda i, o, k: PLACED["head_mask, soft"](i, o, k, 4),
    "lora, gated": lambda i, o, k: GatedInventory(LoRAInventory(i, o, k, rank=2)),
    # A threshold amid the scores that tests fill in.
    "supermask": partial(SupermaskInventory, threshold=0.0),
    "masked_sparse": partial(_seeded(KINDS["masked_sparse"]), threshold=0.0, sparsity=0.7),
    "far": partial(_seeded(KINDS["far"]), sparsity=0.6),
    "mtl_lora": partial(KINDS["mtl_lora"], rank=RANK, n_up=2),
    "dora": partial(DoRAInventory, rank=RANK),
    "vera": partial(VeRAInventory, rank=5),
}


def make_kind(kind: str, *sizes: int, **heads: int) -> Inventory:
    """Return an inventory of a linear layer or a block by its name."""
    return (INVENTORIES | OTHERS)[kind](*sizes, **heads)


def _c_poly(g: int, t: int, h: int, k: int) -> CPolyRouter:
    """Return one in which the first tasks have one of the last skills each, of fewer than half."""
    router = CPolyRouter(g, t, h, k, n_private=0)
    n_own = min(t, (k - 1) // 2)
    router.allowed[:, k - n_own :] = torch.eye(t)[:, :n_own]
    router.n_common = k - n_own
    return router


# (n_groups, n_tasks, n_heads, n_skills) -> router
ROUTERS: dict[str, Callable[[int, int, int, int], TaskRouter]] = {
    "polytropon": PolytroponRouter,
    "polytropon-plain": partial(PolytroponRouter, relaxed=False),
    "polytropon-hard": partial(PolytroponRouter, straight_through=True),
    "polytropon-hard-plain": partial(PolytroponRouter, straight_through=True, relaxed=False),
    "polytropon-shared": partial(PolytroponRouter, shared_skill=True),
    "task_moe": partial(TaskMoERouter, top_k=2),
    "categorical": partial(CategoricalRouter, temperature=0.7),
    "categorical-soft": partial(CategoricalRouter, straight_through=False),
    "score_function": ScoreFunctionRouter,
    # Every task has two of the factors, or one of them twice.
    "metadata": lambda g, t, h, k: MetadataRouter(
        g, t, h, k, factors=torch.eye(t) + torch.eye(t)[:, [*range(1, t), 0]]
    ),
    "c_poly": _c_poly,
    "random": RandomRouter,
    "coefficients": CoefficientRouter,
    "hyperformer": lambda g, t, h, k: HyperFormerRouter(g, t, 1, k),
    "average": AverageRouter,
    "expert": lambda g, t, h, k: ExpertRouter(g, t, h, k, matrix=torch.ones(t, k).tril() + 0.5),
}
UNLEARNED = ("average", "expert", "score_function", "random")
LEARNED = [name for name in ROUTERS if name not in UNLEARNED]


def mixing(n_examples: int, n_heads: int, n_skills: int, seed: int = 0) -> Tensor:
    """Return random weights (B, H, K) whose rows sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n_examples, n_heads, n_skills, generator=generator).softmax(-1)


def filled(inventory: Inventory, seed: int = 0) -> Inventory:
    """Give the skills fixed weights that change the output."""
    fill(inventory, seed)
    return inventory


def spread(router: TaskRouter, seed: int = 0) -> TaskRouter:
    """Give the router fixed parameters under which tasks differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator))
    return router


# A kind by its name in any of the lists, or what makes one but for the sizes of a place.
Kind = str | Make


def kind_class(kind: Kind) -> type[Inventory]:
    """Return the class of a kind; a base, for a test's own."""
    made: Any = PLACED.get(kind) if isinstance(kind, str) else kind
    found = type(make_kind(kind, 4, 4, 2)) if made is None else getattr(made, "func", made)
    return next(kind for kind in found.__mro__ if not kind.__name__.startswith("_"))


def attach_kind(
    backbone: nn.Module, kind: Kind, *, n_skills: int, n_heads: int = 1, **where: Any
) -> Attachment:
    """Put skills on a backbone."""
    make = (INVENTORIES | OTHERS | PLACED)[kind] if isinstance(kind, str) else kind
    point = kind_class(kind).attachment_point
    words = {"embedding": "input", "embedded": "input", "norm": "norms", "stack": "stack"}
    if point in words and where["targets"] == ["attention"]:
        where["targets"] = [words[point]]
    if point == "attention" and hasattr(backbone, "config"):
        read_prefixes(backbone)  # type: ignore[arg-type]
    heads = {"n_heads": n_heads} if n_heads > 1 else {}
    return attach_skills(
        backbone,
        lambda i, o, *more: make(i, o, n_skills, *more, **heads),
        attachment_point=point,
        **where,
    )


def skilled(
    backbone: nn.Module,
    *,
    inventory: Kind = "lora-factors",
    router: str | Callable[..., TaskRouter] = "polytropon",
    n_tasks: int = 3,
    n_skills: int = 3,
    n_heads: int = 1,
    targets: Sequence[str] = ("attention", "mlp"),
    granularity: str = "linear",
    train_backbone: bool = False,
) -> SkilledModel:
    """Return a model whose skills and router are far from their initialisation."""
    backbone.requires_grad_(train_backbone)
    slot = RoutingSlot()
    attachment = attach_kind(
        backbone,
        inventory,
        n_skills=n_skills,
        n_heads=n_heads,
        targets=targets,
        slot=slot,
        granularity=granularity,
    )
    make = ROUTERS[router] if isinstance(router, str) else router
    sizes = len(attachment.groups), n_tasks, n_heads, n_skills
    model = SkilledModel(backbone, make(*sizes), slot)
    spread(model.router)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    return model.eval()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every gradient by name."""
    return {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


class Twice(nn.Module):
    """The same layer at two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def skilled_at(backbone: nn.Module, target: str) -> SkilledModel:
    """Attach the average of two skills to one path."""
    slot = RoutingSlot()
    make = lambda i, o: filled(LoRAInventory(i, o, 2, rank=2))  # noqa: E731
    attach_skills(backbone, make, targets=[target], slot=slot)
    return SkilledModel(backbone, AverageRouter(1, 1, 1, 2), slot)

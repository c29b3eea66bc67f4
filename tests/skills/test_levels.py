"""Skills on top of frozen skills that another run trained."""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.adapterhub import adapterhub
from helpers.backbones import BACKBONES, batch, fill, tiny_bart, tiny_llama, tiny_t5
from helpers.compare import assert_same, relative_error
from helpers.skills import INVENTORIES, OTHERS, PLACED, gradients, kind_class
from mttl.checkpoints.model_tensors import backbone_parameters
from mttl.merging.fold import fold
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing import CoefficientRouter, RoutingSlot
from mttl.routing.context import ConstantSlot
from mttl.routing.task.fixed import GivenRows
from mttl.skills import PrefixInventory, SkilledModel
from mttl.skills.attach import Level, Placement, attach_levels
from mttl.skills.blocks.invertible import InvertibleEmbedding
from mttl.skills.skilled_layer import layers_of

K, TASKS = 2, torch.tensor([2, 0, 1, 0])
SHARES = torch.tensor([0.25, 0.75])  # of the skills of the other run
ROUNDING = 1e-9  # double precision, sums in another order
KINDS = INVENTORIES | OTHERS | PLACED
WORDS = {"embedding": "input", "embedded": "input", "norm": "norms", "stack": "stack"}


def placed(kind: str, targets: tuple[str, ...] = ("attention",)) -> Placement:
    point = kind_class(kind).attachment_point
    targets = (WORDS[point],) if point in WORDS else targets
    make = KINDS[kind]
    return Placement(lambda i, o, *more: make(i, o, K, *more), targets, point)


def stacked(backbone: nn.Module, *placements: Placement) -> SkilledModel:
    """Return a model whose last skills are its own, of three tasks, on top of the others."""
    backbone.double().requires_grad_(False)
    slots = [ConstantSlot(torch.zeros(1, 1, 1, K)) for _ in placements[1:]]
    own, levels = RoutingSlot(), []
    for placement, slot in zip(placements, [*slots, own], strict=True):
        levels.append(Level([placement], slot, "layer"))
    *below, made = attach_levels(backbone, levels)
    if any(placement.attachment_point == "attention" for placement in placements):
        read_prefixes(backbone)  # type: ignore[arg-type]
    for slot, attached in zip(slots, below, strict=True):
        slot.mixing = SHARES.expand(len(attached.groups), 1, 1, K)
        for seed, layer in enumerate(layers_of(backbone, slot).values()):
            fill(layer.inventory.double().requires_grad_(False), seed)
    router = CoefficientRouter(len(made.groups), 3, 1, K).double()
    model = SkilledModel(backbone, router, own)
    fill(router)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory.double(), 100 + seed)
    return model.double().eval()


def alone(backbone: nn.Module, placement: Placement) -> SkilledModel:
    """Return a model with the skills of the other run only, with the routing of its task."""
    model = stacked(backbone, placement)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    rows = SHARES.double().expand(model.router.n_groups, 3, 1, K)
    return model.with_router(GivenRows(rows))


def run(model: SkilledModel) -> Tensor:
    return model(TASKS, **batch(4)).logits


# Parameters of an adapter of AdapterHub, in the order of ours.
ADAPTER = [f"adapter_{name}.{part}" for name in ("down.0", "up") for part in ("weight", "bias")]
STACKED = ("adapter", "adapter, behind", "compacter", "prefix", "prefix, joint", "lora, gated")
STACKED += ("lora-factors", "lora-outputs", "ia3", "sparse-deltas", "sparse-outputs", "norm")
STACKED += ("head_mask", "bitfit", "intrinsic", "diff_pruning", "krona-deltas", "invertible")


@pytest.mark.parametrize("kind", STACKED)
def test_fresh_skills_leave_the_other_runs_as_they_are(kind: str) -> None:
    """They learn; the others get no gradient, are not sampled, and are none of the model's own."""
    expected = run(alone(tiny_t5(), placed(kind)))
    model = stacked(tiny_t5(), placed(kind), placed(kind)).train()
    changed = run(model)
    changed.square().sum().backward()
    own = [layer.inventory for layer in model.skilled_layers().values()]
    held = {id(value) for part in own for value in part.parameters()}
    held |= {id(value) for value in model.router.parameters()}
    learnt = {id(value) for value in model.parameters() if value.grad is not None}
    assert learnt == held
    plain = stacked(tiny_t5(), placed(kind))
    assert model.skilled_layers().keys() == plain.skilled_layers().keys()
    if kind == "prefix, joint":  # is never without effect
        return
    for part in own:
        part.reset_parameters()
    assert relative_error(run(model), expected) < ROUNDING
    assert relative_error(changed, expected) > 1e-3


@pytest.mark.parametrize(
    ("other", "own", "family"),
    [
        ("lora-factors", "lora-factors", "t5"),
        ("lora-deltas", "sparse-deltas", "llama"),
        ("sparse-deltas", "sparse-deltas", "t5"),
        ("supermask", "lora-factors", "bart"),
        ("head_mask", "lora-factors", "t5"),
        ("ia3", "head_mask", "t5"),
        ("lora-outputs", "adapter", "gpt2"),
        ("lora-factors", "norm", "t5"),
        ("norm", "norm", "bart"),
        ("dense-deltas", "invertible", "llama"),
    ],
)
def test_weights_are_those_of_the_other_run_folded_in(other: str, own: str, family: str) -> None:
    found = stacked(BACKBONES[family](), placed(other), placed(own))
    before = alone(BACKBONES[family](), placed(other))
    folded = fold(before, before.router.matrix()[:, 0]).backbone
    expected = stacked(folded, placed(own))
    logits = [run(model) for model in (found, expected)]
    for one in logits:
        one.square().sum().backward()
    assert relative_error(*logits) < ROUNDING
    ours, theirs = (
        {name.replace(".base", ""): value for name, value in gradients(model).items()}
        for model in (found, expected)
    )
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert relative_error(ours[name], gradient) < ROUNDING, name


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_madx_is_a_stack_of_adapterhubs(family: str) -> None:
    """Its `Stack`, with the invertible adapter of the language, has the same output."""
    hub, settings = adapterhub(), {"tie_word_embeddings": True} if family == "llama" else {}
    make = partial({"t5": tiny_t5, "llama": tiny_llama}[family], **settings)
    adapter = placed("adapter, behind", ("mlp",))
    model = stacked(make(), placed("invertible"), adapter, adapter)
    rows, used = model.router.mix(torch.tensor([1])), []

    def parts(layer: Any, names: list[str]) -> dict[str, Tensor]:
        """Return the mixed parameters of a layer's skills under names of AdapterHub."""
        mixing = rows if layer.slot is model.slot else layer.slot.mixing
        used.extend(value.requires_grad_(True) for value in layer.inventory.parameters())
        mixed = (part[0] for part in layer.inventory.merge(mixing[layer.group]))
        return dict(zip(names, mixed, strict=True))

    bare: Any = make().double().eval()
    config = hub.configuration.ModelAdaptersConfig()
    for name in ("language", "task"):
        own = hub.configuration.DoubleSeqBnConfig(non_linearity="gelu", reduction_factor=5)
        config.add(name, own)
    for path, above in model.skilled_layers().items():
        layer = hub.bottleneck.BottleneckLayer("output_adapter")
        layer.init_adapters(SimpleNamespace(hidden_size=16), config)
        state = {}
        for name, skills in (("language", above.base), ("task", above)):
            layer.add_adapter(name, 0)
            state |= parts(skills, [f"adapters.{name}.{part}" for part in ADAPTER])

        def stack(_: Any, __: Any, made: Tensor, layer: Any = layer, state: Any = state) -> Tensor:
            return functional_call(layer, state, (made, torch.zeros_like(made), None))

        bare.get_submodule(path).register_forward_hook(stack)
    nice = hub.modeling.NICECouplingBlock([[16]], non_linearity="gelu")
    (language,) = (one for one in model.modules() if isinstance(one, InvertibleEmbedding))
    coupled = partial(functional_call, nice, parts(language, [*dict(nice.named_parameters())]))
    reader = bare.get_encoder() if family == "t5" else bare.model
    reader.embed_tokens.register_forward_hook(lambda _, __, made: coupled((made,)))
    if settings:
        bare.lm_head.register_forward_pre_hook(lambda _, given: coupled((given[0], [], True)))
    with hub.context.AdapterSetup(hub.composition.Stack("language", "task")):
        expected = bare(**batch(4)).logits
    found = model(torch.ones(4, dtype=torch.long), **batch(4)).logits
    assert_same(found, expected, used, rtol=1e-10, atol=1e-10)  # as ROUNDING, through all layers


def test_joint_prefixes_are_one_longer_prefix() -> None:
    model = stacked(tiny_llama(), placed("prefix, joint"), placed("prefix, joint"))
    (slot,) = {one for one in model.modules() if isinstance(one, ConstantSlot)}
    both = layers_of(model.backbone, slot), model.skilled_layers()
    joined = stacked(
        tiny_llama(),
        Placement(
            lambda i, o, *more: PrefixInventory(i, o, K, *more, length=4, gated=False),
            ["attention"],
            "attention",
        ),
    )
    joined.router = model.router
    with torch.no_grad():
        for path, layer in joined.skilled_layers().items():
            below, above = (level[path].inventory for level in both)
            weights = model.router.mix(torch.tensor([1]))[layer.group]
            for name in ("keys", "values"):
                mixed = torch.tensordot(SHARES.double(), getattr(below, name), 1)
                # Coefficients of a task need not sum to 1.
                given = mixed / weights.sum()
                value = torch.cat([given.expand(K, -1, -1), getattr(above, name)], -1)
                getattr(layer.inventory, name).copy_(value)
    ids, inputs = torch.ones(4, dtype=torch.long), batch(4)
    found, expected = (m(ids, **inputs).logits for m in (model, joined))
    assert relative_error(found, expected) < ROUNDING


def test_the_inverse_precedes_the_output_layer() -> None:
    """With tied weights, in generation too; the order is that of the levels."""
    kinds = placed("invertible"), placed("invertible")
    model = stacked(tiny_llama(tie_word_embeddings=True), *kinds)
    network: Any = model.backbone
    own, ids = network.get_input_embeddings(), batch(4)["input_ids"]
    with model.slot.use(model.route(TASKS)):
        states = network.model(ids).last_hidden_state
        expected = own.base.inverse(own.inverse(states)) @ own.weight.t()
        assert relative_error(own.inverse(own(ids)), own.base(ids)) < ROUNDING
    assert relative_error(model(TASKS, input_ids=ids).logits, expected) < ROUNDING
    copied = copy.deepcopy(model)
    for layer in copied.skilled_layers().values():
        layer.inventory.reset_parameters()
    assert relative_error(copied(TASKS, input_ids=ids).logits, expected) > 1e-3
    apart: Any = stacked(tiny_llama(), placed("invertible")).backbone
    assert not apart.lm_head._forward_pre_hooks  # weights of its own


def test_inline_blocks_become_modules_once() -> None:
    """Those of BART; layers and parameters keep their names."""
    levels = placed("adapter, behind", ("mlp",)), placed("lora-factors", ("mlp",))
    bare = backbone_parameters(tiny_bart())
    for kinds in (levels, levels[::-1], levels[:1] * 2):
        model = stacked(tiny_bart(), *kinds)
        (slot,) = {one for one in model.modules() if isinstance(one, ConstantSlot)}
        for own, kind in zip((slot, model.slot), kinds, strict=True):
            names = stacked(tiny_bart(), kind).skilled_layers().keys()
            assert layers_of(model.backbone, own).keys() == names
        assert relative_error(run(model), run(stacked(tiny_bart(), kinds[1]))) > 1e-3
        assert backbone_parameters(model.backbone).keys() == bare.keys()


def test_skills_that_read_a_weight_are_refused() -> None:
    with pytest.raises(ValueError, match="reads the weight of its layer, which has skills of"):
        stacked(tiny_t5(), placed("lora-factors"), placed("supermask"))

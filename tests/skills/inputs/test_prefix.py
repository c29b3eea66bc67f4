"""Prefixes, beside a plain loop and PEFT's prefix tuning and LLaMA-Adapter."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, T5Config, T5ForConditionalGeneration

from helpers.backbones import BACKBONES, batch, fill, tiny_gpt2, tiny_llama, tiny_t5
from helpers.compare import assert_same, relative_error
from helpers.skills import filled, mixing, skilled
from mttl.assembly.model import build_model
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing import AverageRouter, Routing, RoutingSlot
from mttl.skills import PrefixInventory, SkilledModel
from mttl.skills.attachment_points import attention_places
from mttl.skills.gated import GatedInventory
from mttl.skills.inputs.prefix import AttentionPrefix, SkilledAttention

ONE = torch.zeros(4, dtype=torch.long)


def narrow_t5() -> T5ForConditionalGeneration:
    """Its heads have fewer features than hidden states have."""
    config = T5Config(vocab_size=40, d_model=16, d_kv=3, d_ff=24, num_layers=1, num_heads=4)
    backbone = T5ForConditionalGeneration(config).eval()
    fill(backbone)
    return backbone


def one_task(
    backbone: nn.Module, targets: Sequence[str] = ("attention",), **settings: Any
) -> SkilledModel:
    """A model with one skill, which its one task has."""
    made = partial(PrefixInventory, **settings)
    sizes = {"n_tasks": 1, "n_skills": 1}
    return skilled(backbone, inventory=made, router=AverageRouter, targets=targets, **sizes)


@pytest.mark.parametrize("mask", ["none", "causal", "truth values", "added"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_attends_as_a_plain_loop(gated: bool, biased: bool, mask: str) -> None:
    """Two examples of two rows each; four heads ask two heads of keys."""
    draw = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    rows, heads, length, seen, size, n_keys = 4, 4, 5, 5, 3, 2
    inventory = filled(PrefixInventory(6, 6, 3, heads, length=n_keys, gated=gated)).double()
    weights = mixing(2, 1, 3).double()
    keys, values, gates = (*inventory.merge(weights), None)[:3]
    assert keys is not None
    assert values is not None
    query, key, value = numbers(rows, heads, length, size), *numbers(2, rows, 2, seen, size)
    bias = numbers(1, heads, length, seen) if biased else None
    allowed = torch.ones(rows, 1, length, seen).bool()
    if mask == "causal":
        allowed = allowed.tril()
    elif mask != "none":
        allowed[1, :, :, :2] = allowed[2, :, :, -2:] = False
    given = {"none": None, "causal": None, "truth values": allowed}.get(
        mask, torch.zeros(allowed.shape).double().masked_fill(~allowed, -1e9)
    )
    module: Any = nn.Module()
    module.num_key_value_groups = 2
    prefix = AttentionPrefix(keys, values, gates, lambda own, n: own.repeat_interleave(n // 2, 0))
    found, _ = prefix.attend(
        *(AttentionInterface()["sdpa"], module, query, key, value, given),
        position_bias=bias,
        is_causal=mask == "causal",
        scaling=0.7,
    )
    for row in range(rows):
        for head in range(heads):
            own = slice(3 * (head // 2), 3 * (head // 2) + 3)
            before, theirs = keys[row // 2, own], values[row // 2, own]
            scores = 0.7 * query[row, head] @ key[row, head // 2].t()
            scores = scores + (bias[0, head] if bias is not None else 0)
            scores = scores.masked_fill(~allowed[row, 0], -1e9)
            extra = 0.7 * query[row, head] @ before
            if gates is None:
                shares = torch.cat([extra, scores], 1).softmax(1)
                expected = shares @ torch.cat([theirs.t(), value[row, head // 2]])
            else:
                expected = scores.softmax(1) @ value[row, head // 2]
                expected = expected + gates[row // 2, head] * (extra.softmax(1) @ theirs.t())
            torch.testing.assert_close(found[row, :, head], expected)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_every_token_opens_a_gate_of_its_own(family: str) -> None:
    """Two examples of two rows each, token by token, with gradients; keys have fewer features."""
    backbone = {"t5": narrow_t5, "llama": tiny_llama}[family]().double().requires_grad_(False)
    read_prefixes(backbone)
    path = {"t5": "decoder.block.0.layer.1.EncDecAttention", "llama": "model.layers.0.self_attn"}
    module: Any = backbone.get_submodule(path[family])
    n_in, n_out, n_heads, n_hidden = attention_places(backbone)[path[family]]
    assert n_hidden == 16
    assert n_in < n_hidden
    skills: Any = filled(PrefixInventory(n_in, n_out, 3, n_heads, n_hidden, length=2))
    inventory: Any = filled(GatedInventory(skills)).double()
    slot, weights = RoutingSlot(), mixing(2, 1, 3).double().requires_grad_()
    layer = SkilledAttention(module, inventory, slot, 0)
    draw = torch.Generator().manual_seed(4)
    x, text = torch.randn(2, 4, 5, n_hidden, generator=draw, dtype=torch.float64)
    x.requires_grad_()
    with slot.use(Routing(torch.arange(2), weights[None], expansion=2)):
        if family == "t5":
            found = layer(x, key_value_states=text)[0]
            names, scaling, causal = "qkvo", 1.0, False
        else:
            text = x
            still = torch.ones(4, 5, 4).double(), torch.zeros(4, 5, 4).double()  # no rotation
            found = layer(hidden_states=x, position_embeddings=still, attention_mask=None)[0]
            names, scaling, causal = ("q_proj", "k_proj", "v_proj", "o_proj"), 0.5, True
    q, k, v, o = (getattr(module, name) for name in names)
    expected = []
    for row, token in itertools.product(range(4), range(5)):
        mix = weights[row // 2, 0]

        def mean(stack: Tensor, mix: Tensor = mix) -> Tensor:
            return torch.tensordot(mix, stack, 1)

        state, seen = x[row, token], text[row, : token + 1 if causal else None]
        opened = (mean(inventory.weight) @ state + mean(inventory.bias)).sigmoid()
        size = len(q(state)) // n_heads
        attended = []
        for head in range(n_heads):
            group = head * n_in // (n_heads * size)
            own = slice(group * size, group * size + size)
            query = scaling * q(state)[head * size : head * size + size]
            plain = (k(seen)[:, own] @ query).softmax(0) @ v(seen)[:, own]
            shares = (mean(skills.keys)[own].t() @ query).softmax(0)
            gate = opened * mean(skills.gate)[head].tanh()
            attended.append(plain + gate * (mean(skills.values)[own] @ shares))
        expected.append(o(torch.cat(attended)))
    wanted = torch.stack(expected).view_as(found)
    assert_same(found, wanted, [x, weights, *inventory.parameters()])


@pytest.mark.parametrize("bottleneck", [None, 5])
@pytest.mark.parametrize("make", [tiny_gpt2, tiny_llama])
def test_equals_prefix_tuning_of_peft(make: Any, bottleneck: int | None) -> None:
    """PEFT's prefix is a cache that the text follows: positions begin behind it."""
    peft = pytest.importorskip("peft")
    n_keys, inputs = 3, batch(4)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, -2:] = 0
    config = peft.PrefixTuningConfig(
        task_type="CAUSAL_LM",
        num_virtual_tokens=n_keys,
        prefix_projection=bottleneck is not None,
        encoder_hidden_size=bottleneck,
    )
    theirs = peft.get_peft_model(make().double(), config).eval()
    encoder = theirs.prompt_encoder["default"].double()
    ours = one_task(make().double(), length=n_keys, gated=False, bottleneck=bottleneck).double()
    layers: list[Any] = [layer.inventory for layer in ours.skilled_layers().values()]
    size = layers[0].in_features
    with torch.no_grad():
        for i, layer in enumerate(layers):
            part = slice(2 * i * size, 2 * (i + 1) * size)
            if bottleneck is None:
                keys, values = encoder.embedding.weight[:, part].t().split(size)
                layer.keys.copy_(keys[None])
                layer.values.copy_(values[None])
            else:
                layer.seeds.copy_(encoder.embedding.weight[None])
                layer.inner.copy_(encoder.transform[0].weight.t()[None])
                layer.inner_bias.copy_(encoder.transform[0].bias[None])
                layer.outer.copy_(encoder.transform[2].weight[part].t()[None])
                layer.outer_bias.copy_(encoder.transform[2].bias[None, part])
    expected = theirs(input_ids=inputs["input_ids"], attention_mask=mask).logits
    positions = torch.arange(n_keys, n_keys + mask.shape[1]).expand_as(mask)
    found = ours(
        ONE, input_ids=inputs["input_ids"], attention_mask=mask, position_ids=positions
    ).logits
    real = mask.bool()
    assert relative_error(found[real], expected[real]) < 1e-9
    found[real].square().sum().backward()
    expected[real].square().sum().backward()
    gradient = encoder.embedding.weight.grad
    if bottleneck is None:
        own = torch.cat([g for one in layers for g in (one.keys.grad[0], one.values.grad[0])])
        assert relative_error(own.t(), gradient) < 1e-9
    else:
        seeds = torch.stack([one.seeds.grad[0] for one in layers]).sum(0)
        assert relative_error(seeds, gradient) < 1e-9
        own = torch.cat([one.outer.grad[0] for one in layers], 1)
        assert relative_error(own.t(), encoder.transform[2].weight.grad) < 1e-9


@pytest.mark.parametrize("gated", [False, True])
def test_a_prefix_without_its_network_is_the_same_and_is_trained_itself(gated: bool) -> None:
    skills = filled(PrefixInventory(6, 12, 3, 4, length=2, gated=gated, bottleneck=5))
    expected = skills.merge(mixing(2, 1, 3))
    skills.drop_network()
    found = skills.merge(mixing(2, 1, 3))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    names = {"keys", "values", "gate"} if gated else {"keys", "values"}
    assert {name for name, _ in skills.named_parameters()} == names
    PrefixInventory(6, 12, 3, 4, length=2, gated=gated).load_state_dict(skills.state_dict())
    found[0].sum().backward()
    assert skills.keys.grad is not None
    skills.drop_network()  # a plain one has none


def test_equals_prefix_tuning_of_peft_in_a_decoder_of_t5() -> None:
    """Without T5's bias of positions, which counts PEFT's prefix as text and ours not."""
    peft = pytest.importorskip("peft")
    n_keys, inputs = 3, batch(4)
    config = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=n_keys)

    def backbone() -> Any:
        made: Any = tiny_t5().double()
        bias = made.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
        nn.init.zeros_(bias.weight)
        return made

    theirs = peft.get_peft_model(backbone(), config).eval()
    encoder = theirs.prompt_encoder["default"].double()
    decoder = ["decoder.*SelfAttention"]
    ours = one_task(backbone(), decoder, length=n_keys, gated=False).double()
    layers: list[Any] = [layer.inventory for layer in ours.skilled_layers().values()]
    assert len(layers) == 2
    # PEFT 0.21.2 cuts its parts by fours for the two attentions of a layer, and drops those for the
    # second: of two layers both have the first keys and values.
    used = slice(2 * layers[0].in_features)
    with torch.no_grad():
        keys, values = encoder.embedding.weight[:, used].t().chunk(2)
        for layer in layers:
            layer.keys.copy_(keys[None])
            layer.values.copy_(values[None])
    expected = theirs(**inputs).logits
    found = ours(ONE, **inputs).logits
    assert relative_error(found, expected) < 1e-9
    assert relative_error(found, backbone()(**inputs).logits) > 1e-3
    found.square().sum().backward()
    expected.square().sum().backward()
    own = [torch.cat([one.keys.grad[0], one.values.grad[0]]) for one in layers]
    assert relative_error(sum(own).t(), encoder.embedding.weight.grad[:, used]) < 1e-9


def test_equals_llama_adapter_of_peft() -> None:
    """Where PEFT's gate is the tanh of ours, and keys are what its projections make of prompts."""
    peft = pytest.importorskip("peft")
    config = peft.AdaptionPromptConfig(
        task_type="CAUSAL_LM", adapter_len=3, adapter_layers=2, target_modules="self_attn"
    )
    theirs = peft.get_peft_model(tiny_llama().double(), config).double().eval()
    ours = one_task(tiny_llama().double(), length=3).double()
    with torch.no_grad():
        for i, layer in enumerate(ours.skilled_layers().values()):
            adapted: Any = theirs.get_base_model().model.layers[i].self_attn
            own: Any = layer.inventory
            adapted.adaption_gate.fill_(0.3 + 0.2 * i)
            own.gate.copy_(adapted.adaption_gate.atanh().expand(1, 4))
            prompt: Any = adapted.adaption_prompt
            own.keys.copy_(adapted.model.k_proj(prompt).mT)
            own.values.copy_(adapted.model.v_proj(prompt).mT)
    ids = batch(4)["input_ids"]
    expected = theirs(input_ids=ids).logits
    assert relative_error(ours(ONE, input_ids=ids).logits, expected) < 1e-6
    assert relative_error(tiny_llama()(input_ids=ids).logits.double(), expected) > 1e-2


@pytest.mark.parametrize("gated", [False, True])
def test_a_cache_of_fixed_length(gated: bool) -> None:
    model = skilled(
        tiny_llama(), inventory="prefix" if gated else "prefix, joint", targets=["attention"]
    )
    inputs = {"input_ids": batch(4)["input_ids"], "max_new_tokens": 6, "do_sample": False}
    ids = torch.tensor([2, 0, 1, 0])
    expected = model.generate(ids, **inputs)
    assert torch.equal(model.generate(ids, cache_implementation="static", **inputs), expected)


@pytest.mark.parametrize(
    ("family", "target", "n_layers"),
    [
        *[("t5", "cross_attention", 2), ("bart", "encoder.*", 2)],
        *[("llama", "self_attention", 2), ("gpt2", "h.0.attn", 1)],
    ],
)
def test_some_attention_alone(family: str, target: str, n_layers: int) -> None:
    model = skilled(BACKBONES[family](), inventory="prefix, joint", targets=[target])
    assert len(model.skilled_layers()) == n_layers
    bare = BACKBONES[family]()(**batch(4)).logits
    assert relative_error(model(torch.tensor([2, 0, 1, 0]), **batch(4)).logits, bare) > 1e-3


def test_other_functions_of_attention_and_packed_rows_are_refused() -> None:
    backbone = tiny_llama()
    backbone.set_attn_implementation("flex_attention")
    with pytest.raises(ConfigError, match=r"attn_implementation \('flex_attention'\) to be 'sdpa'"):
        read_prefixes(backbone)
    model = skilled(tiny_llama(), inventory="prefix", targets=["attention"])
    inputs = {"input_ids": batch(1)["input_ids"]}
    routing = model.route(torch.tensor([0, 1]), inputs={**inputs, "segments": (2, 3)})
    with model.slot.use(routing), pytest.raises(ValueError, match="received 1 rows for 2 task ids"):
        model.backbone(**inputs)


def test_gates_of_heads_that_lie_in_two_blocks_are_mixed_by_their_parts() -> None:
    prefixes = PrefixInventory(6, 12, 2, 4, n_heads=3)
    torch.nn.init.normal_(prefixes.gate)
    weights = torch.rand(1, 3, 2)
    # Twelfths of the features: three to a head of attention, four to a block.
    due = torch.zeros(4)
    for part in range(12):
        due[part // 3] += weights[0, part // 4] @ prefixes.gate[:, part // 3] / 3
    torch.testing.assert_close(prefixes.merge(weights)[2][0], due.tanh())


@pytest.mark.parametrize(
    ("model_type", "size"), [("rwkv", "attention_hidden_size: 16"), ("mamba", "state_size: 2")]
)
def test_a_backbone_without_attention_is_refused(model_type: str, size: str) -> None:
    sizes = f"{{{size}, vocab_size: 384, hidden_size: 16, num_hidden_layers: 2}}"
    settings = [f"backbone.model_type={model_type}", f"backbone.config={sizes}"]
    names = "crossfit.yaml+backbone/tiny_llama.yaml+skills/prefix.yaml"
    message = "'attention' matches no attention module: this backbone has none; use a kind of"
    with pytest.raises(ConfigError, match=message):
        build_model(load_config(names, settings), ["a", "b"])

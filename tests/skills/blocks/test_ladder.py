"""Ladders beside a stack, against the formula, and what they spare the backbone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from helpers.backbones import BACKBONES, batch, fill
from helpers.compare import relative_error
from helpers.skills import gradients, mixing, skilled
from mttl.assembly.model import build_model
from mttl.config.load import load_config
from mttl.skills import LadderInventory, SkilledModel
from mttl.skills.blocks.ladder import SkilledStack

M, D, S, O, K = 4, 6, 5, 7, 3  # noqa: E741


def norm(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


def test_it_is_the_formula_token_by_token_with_averaged_parameters() -> None:
    inventory = LadderInventory(M * D, O, K, M, side_features=S).double()
    fill(inventory)
    weights, states, y = mixing(2, 1, K).double(), torch.randn(2, 3, M, D), torch.randn(2, 3, O)
    found = inventory(states.double().flatten(2), y.double(), weights)
    for b in range(2):
        own = {
            name: sum(w * one for w, one in zip(weights[b, 0], stack, strict=True))
            for name, stack in inventory.named_parameters()
        }
        for token in range(3):
            h = states[b, token].double()
            side = own["down"][0] @ h[0]
            for n in range(1, M):
                gate = 1 / (1 + (-own["gates"][n - 1] / 0.1).exp())
                u = gate * side + (1 - gate) * own["down"][n] @ h[n]
                hidden = (own["inner"][n - 1] @ norm(u)).clamp(min=0)
                side = u + own["outer"][n - 1] @ hidden
            expected = y[b, token].double() + own["up"] @ norm(side)
            torch.testing.assert_close(found[b, token], expected)


@pytest.mark.parametrize("family", BACKBONES)
def test_it_reads_the_states_that_the_backbone_tells(family: str) -> None:
    model = skilled(BACKBONES[family](), inventory="ladder", targets=["stack"])
    (layer,) = model.skilled_layers().values()
    assert isinstance(layer, SkilledStack)
    seen = []
    combine = layer.inventory.combine
    layer.inventory.combine = lambda x, y, merged: seen.append(x) or combine(x, y, merged)
    outputs = model(torch.arange(3), **batch(3), output_hidden_states=True)
    told = outputs.hidden_states if "hidden_states" in outputs else outputs.decoder_hidden_states
    ours = seen[0].view(3, 5, len(told), -1).unbind(2)
    # The last that transformers tells went through the final norm.
    for own, one in zip(ours[:-1], told[:-1], strict=True):
        assert torch.equal(own, one)


def saved_bytes(model: SkilledModel, run: Callable[[], Tensor]) -> int:
    """Return the bytes that a training step keeps for its backward pass beside parameters."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
        n_bytes = sum(kept.values())  # while all of them live
    loss.backward()
    return n_bytes


@pytest.mark.parametrize("family", BACKBONES)
def test_no_gradient_is_computed_in_the_backbone(family: str) -> None:
    """Not even of activations: what a step keeps is a fraction of what other kinds keep."""
    kept = {}
    for kind in ("ladder", "adapter, behind", "lora-factors"):
        targets = ["stack"] if kind == "ladder" else ["attention", "mlp"]
        model = skilled(BACKBONES[family](), inventory=kind, targets=targets).train()
        tracked = []
        for path, module in model.backbone.named_modules():
            if "inventory" not in path and not isinstance(module, SkilledStack):
                module.register_forward_hook(lambda m, _, y, all_=tracked: all_.append((m, y)))
        rows, ids = batch(3, length=24), torch.arange(3)
        kept[kind] = saved_bytes(model, lambda m=model, r=rows, i=ids: m(i, **r).loss)
        alive = {type(m) for m, y in tracked if isinstance(y, Tensor) and y.requires_grad}
        if kind == "ladder":
            assert alive <= {nn.Linear}  # the head, behind the ladder
            assert set(gradients(model)) == {
                name for name, p in model.named_parameters() if p.requires_grad
            }
        else:
            assert len(alive) > 2
    # Of two blocks: with more of them it is less.
    assert kept["ladder"] < 0.6 * min(kept["adapter, behind"], kept["lora-factors"]), kept


def test_states_are_taken_without_their_history() -> None:
    """A backbone that is trained too learns from what it returns, not from what ladders read."""
    model = skilled(
        BACKBONES["llama"](), inventory="ladder", targets=["stack"], train_backbone=True
    )
    (layer,) = model.skilled_layers().values()
    combine, seen = layer.inventory.combine, []
    layer.inventory.combine = lambda x, y, merged: seen.append((x, y)) or combine(x, y, merged)
    model(torch.arange(3), **batch(3)).loss.backward()
    ((x, y),) = seen
    assert y.requires_grad
    assert not x.requires_grad


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_beside_other_kinds(family: str) -> None:
    """Prompts in front of the text are not among what a ladder reads; blocks stay in reach."""
    config = load_config(
        f"crossfit.yaml+backbone/tiny_{family}.yaml",
        [
            "skills.kind=several",
            "skills.n_skills=2",
            "skills.kinds=[{kind: ladder}, {kind: prompt, length: 3}, "
            "{kind: adapter, targets: [mlp]}, {kind: lora, targets: [attention]}]",
        ],
    )
    model = build_model(config, ("a", "b", "c")).model.eval()
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    ids, rows = torch.arange(3), batch(3)
    together = model(ids, **rows).logits
    alone = torch.cat(
        [model(ids[i : i + 1], **{k: v[i : i + 1] for k, v in rows.items()}).logits for i in ids]
    )
    assert relative_error(together, alone) < 1e-4
    settings = {"input_ids": rows["input_ids"], "max_new_tokens": 4, "min_new_tokens": 4}
    slow = model.generate(ids, **settings, use_cache=False, num_beams=2)
    assert torch.equal(model.generate(ids, **settings, num_beams=2), slow)

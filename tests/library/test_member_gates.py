"""Gates of members: what they multiply while they learn, and that nothing else changes."""

import pytest
import torch
from transformers import ByT5Tokenizer

from helpers.backbones import BACKBONES
from helpers.experts import N_EXPERTS, padded_batch, token_model
from mttl.io.errors import DivergedError
from mttl.library.member_gates import own_members, train_gates
from mttl.routing import PhatgooseRouter, PrivateRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills
from mttl.skills.gated import GatedInventory
from mttl.training.text_to_text import TextToTextModule

TASKS = torch.tensor([2, 0, 3])


def model_of_members(name: str) -> SkilledModel:
    def make(place):
        return PhatgooseRouter(place.in_features, N_EXPERTS)

    model = token_model(BACKBONES[name](), router=make, n_tasks=N_EXPERTS)
    for layer in model.token_layers().values():
        layer.read_members()
    return model


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_member_acts_behind_its_sigmoid_on_its_own_task(name: str) -> None:
    """The same as skills of a private router behind gates, which another part computes."""
    model, inputs = model_of_members(name), padded_batch()
    peer, slot = BACKBONES[name](), RoutingSlot()
    attachment = attach_skills(
        peer,
        lambda i, o: GatedInventory(LoRAInventory(i, o, N_EXPERTS, rank=2)),
        targets=["mlp"],
        slot=slot,
        granularity="linear",
    )
    gated = SkilledModel(peer, PrivateRouter(len(attachment.groups), N_EXPERTS), slot).eval()
    with torch.no_grad():
        for path, layer in model.token_layers().items():
            torch.nn.init.normal_(layer.router.gates)
            own = gated.skilled_layers()[path].inventory
            own.weight.copy_(layer.router.gates)
            own.skills.load_state_dict(layer.experts.state_dict())
    expected = gated(TASKS, **inputs).logits
    plain = model(TASKS, **inputs).logits
    with own_members(model):
        found = model(TASKS, **inputs).logits
    # Sums in single precision in another order. Padding is routed to no member here.
    real = inputs["labels"] != -100 if name == "t5" else inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)
    assert torch.equal(model(TASKS, **inputs).logits, plain)
    assert not torch.allclose(found[real], plain[real], atol=1e-3)


def test_gates_learn_and_nothing_else_does() -> None:
    model = model_of_members("t5")
    metrics = {f"task{number}": "EM" for number in range(N_EXPERTS)}
    module = TextToTextModule(model, ByT5Tokenizer(), metrics)
    batch = padded_batch() | {"task_ids": TASKS}
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def loss() -> float:
        with own_members(model), torch.no_grad():
            losses, labels, _ = module.nll(batch)
        return float(losses.sum() / (labels != -100).sum())

    first = loss()
    train_gates(module, [batch], n_steps=20, lr=0.05)
    assert loss() < first
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {f"backbone.{path}.router.gates" for path in model.token_layers()}
    for layer in model.token_layers().values():
        moved = layer.router.gates.any(1).tolist()
        assert moved == [True, False, True, True]  # no row was of the second task
    assert not any(value.grad is not None for value in model.parameters())

    torch.nn.init.constant_(module.model.backbone.get_input_embeddings().weight, torch.nan)
    with pytest.raises(DivergedError, match=r"not finite at step 2.*Lower moe.router.gate_lr"):
        train_gates(module, [batch], n_steps=2, lr=0.05)

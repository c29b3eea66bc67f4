"""Intrinsic prompt tuning: the decoder's formula, and what adaptation trains."""

import pytest
import torch

from helpers.backbones import tiny_t5
from helpers.compare import assert_same
from helpers.modes import adapted
from helpers.skills import filled, mixing, skilled
from mttl.adaptation.modes import count_trained
from mttl.skills import KINDS

V, O, P, D, H, K, B = 11, 4, 3, 5, 6, 3, 2  # noqa: E741
DECODER = ("inner", "inner_bias", "outer", "outer_bias")


def test_a_prompt_is_the_decoded_mixture_of_vectors() -> None:
    sizes = {"dimension": D, "hidden_features": H, "length": P}
    skills = filled(KINDS["ipt"](V, O, K, **sizes)).double()
    weights = mixing(B, 1, K).double().requires_grad_()
    entries = []
    for b in range(B):
        vector = sum(weights[b, 0, k] * skills.vectors[k] for k in range(K))
        hidden = [
            torch.tanh(sum(skills.inner[h, d] * vector[d] for d in range(D)) + skills.inner_bias[h])
            for h in range(H)
        ]
        for place in range(P * O):
            entry = sum(skills.outer[place, h] * hidden[h] for h in range(H))
            entries.append(entry + skills.outer_bias[place])
    expected = torch.stack(entries).view(B, P, O)
    assert_same(skills.merge(weights)[0], expected, [weights, *skills.parameters()])


@pytest.mark.parametrize(
    ("mode", "init", "trains_decoder", "keeps_decoder"),
    [
        ("skills_only", "mean", False, True),
        ("all", "mean", False, True),
        ("all", "private_skill", False, True),
        ("full", "mean", True, True),
        ("from_scratch", "mean", True, False),
    ],
)
def test_adaptation_trains_vectors_in_the_subspace(
    mode, init, trains_decoder, keeps_decoder
) -> None:
    model = skilled(tiny_t5(), inventory="ipt", targets=["input"])
    (layer,) = model.skilled_layers().values()
    skills = layer.inventory
    before = {name: value.clone() for name, value in skills.named_parameters()}
    with adapted(model, mode, init=init):
        for name, value in skills.named_parameters():
            assert value.requires_grad == (trains_decoder or name == "vectors"), name
        for name in DECODER:
            assert torch.equal(getattr(skills, name), before[name]) == keeps_decoder, name
        assert torch.equal(skills.vectors, before["vectors"]) == (
            init == "mean" and mode != "from_scratch"
        )
        if mode == "skills_only":
            assert count_trained(model) == skills.vectors.numel()
        if init == "private_skill":  # a new task has one vector
            assert count_trained(model) == skills.dimension
    for name, value in skills.named_parameters():
        assert torch.equal(value, before[name]), name


def test_a_decoder_with_as_many_rows_as_skills_is_no_stack() -> None:
    skills = KINDS["ipt"](V, O, K, dimension=D, hidden_features=K, length=P)
    before = skills.inner.clone()
    skills.reset_skills(torch.arange(K))
    skills.make_identical()
    assert torch.equal(skills.inner, before)
    assert torch.equal(skills.vectors, skills.vectors[:1].expand(K, -1))

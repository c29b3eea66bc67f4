"""Experts of grid positions beside the FiLM blocks of a policy, against a plain loop."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from helpers.babyai import LEVELS, TINY
from helpers.backbones import fill
from helpers.command import column, read_csv, train
from helpers.interruption import assert_same_run, interrupted
from mttl.io import yaml12

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from mttl.adaptation.modes import TRAINED_ROLES
from mttl.analysis.token_record import read_token_record
from mttl.babyai.build_policy import build_policies, load_policies
from mttl.babyai.cell_choices import CellChoices, cell_text
from mttl.babyai.new_levels import adapt_policies
from mttl.babyai.policy_module import PolicyModule
from mttl.babyai.position_experts import ViewRouting
from mttl.commands import adapt, export
from mttl.config.babyai_schema import BabyAIConfig
from mttl.io.errors import CheckpointError

MOE = {
    "router": {"kind": "top_k", "top_k": 2, "normalise": False},
    "experts": {"kind": "adapter", "hidden_features": 5},
    "n_experts": 3,
    "balance": {"switch": 0.1, "z": 0.01, "bias": 0.001},
}


def build(**changes):
    config = BabyAIConfig.model_validate({**TINY, "moe": {**MOE, **changes}})
    model = build_policies(config, LEVELS)
    for layer in model.base.experts:
        fill(layer)
    return model


def one_expert(experts, number: int, x: torch.Tensor) -> torch.Tensor:
    """Return the change of one token by a bottleneck adapter."""
    own = experts.blocks
    hidden = (own.up[number] @ x + own.up_bias[number]).relu()
    return own.down[number] @ hidden + own.down_bias[number]


def test_a_block_is_a_loop_over_positions() -> None:
    layer = build(shared_expert=True).base.experts[0].double()
    x = torch.randn(2, 8, 7, 7, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for view, row, cell in ((f, i, j) for f in range(2) for i in range(7) for j in range(7)):
        token = x[view, :, row, cell]
        # Gates are float32 for any dtype.
        gates = (layer.router.weight.float() @ token.float()).softmax(0)
        y = one_expert(layer.shared.experts, 0, token)
        for expert in (gates + layer.router.bias.value).topk(2).indices:
            y = y + gates[expert].double() * one_expert(layer.experts, int(expert), token)
        expected[view, :, row, cell] = y
    # Two float32 softmaxes of the same numbers.
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)


def inputs() -> tuple[torch.Tensor, ...]:
    images = torch.randint(0, 5, (2, 2, 3, 7, 7, 3))
    missions, index = torch.randint(1, 9, (2, 2, 4)), torch.zeros(2, 2, 3, dtype=torch.long)
    return images, missions, index, torch.zeros(2, 3, 16), torch.zeros(2, 2, 3, dtype=torch.bool)


def test_new_experts_change_nothing_and_every_level_uses_them() -> None:
    torch.manual_seed(0)
    plain = build_policies(BabyAIConfig.model_validate(TINY), LEVELS)
    torch.manual_seed(0)
    model = build_policies(BabyAIConfig.model_validate({**TINY, "moe": MOE}), LEVELS)
    given, ids = inputs(), torch.arange(2)
    with model.base.experts[0].slot.use(ViewRouting()) as routing:
        torch.testing.assert_close(model(ids, *given), plain(ids, *given), rtol=0, atol=0)
    assert [record.layer for record in routing.records] == ["experts.0", "experts.1"] * 2
    assert not torch.equal(build()(ids, *given)[0], plain(ids, *given)[0])


def test_choices_of_cells_are_counted_by_level_until_their_slot_ends() -> None:
    model, (images, missions, index, memory, begins) = build(), inputs()
    given = torch.arange(2), images[:, :1], missions, index[:, :1], memory, begins[:, :1]
    alive, choices = np.array([[True, False, True], [False, True, True]]), CellChoices(model)
    with model.base.experts[0].slot.use(ViewRouting()) as routing:
        model(*given)
    with choices.counting(images[:, 0].numpy().astype(np.uint8), alive):
        model(*given)
    codes = (images[:, 0] @ torch.tensor([2**16, 2**8, 1])).tolist()
    expected = Counter()
    for number, record in enumerate(routing.records):
        level, layer = divmod(number, 2)
        for token, expert in zip(record.tokens.tolist(), record.experts.tolist(), strict=True):
            (slot, column), row = divmod(token // 7, 7), token % 7
            cells = [2**24, *codes[level][slot][column]]  # the first has none ahead
            expected[layer, expert, cells[row], cells[row + 1]] += int(alive[level, slot])
    for layer in range(2):
        own = choices.counts.bigrams(layer)
        for *key, n in zip(own.experts, own.previous, own.tokens, own.counts, strict=True):
            expected[layer, *key] -= n
    assert not any(expected.values())
    assert choices.counts.tasks.sum((0, 2)).tolist() == [2 * 2 * 2 * 49] * 2  # two slots
    cells = {0: "unseen", 1 << 16: "empty", 6 << 16: "red ball", 4 << 16 | 514: "locked blue door"}
    assert [*map(cell_text, cells)] == [*cells.values()]


class Balanced(PolicyModule):
    def losses(self, batch):
        return 0.0 * self.model(self.task_ids, *batch)[0].sum(), {}


def test_balancing_losses_are_means_over_levels() -> None:
    model, given = build().train(), inputs()
    config = BabyAIConfig.model_validate(TINY)
    found: Any = Balanced(model, LEVELS, config.optim, config.rl).training_step(given, 0)
    assert found["token_loads"].sum() == 2 * 2 * 2 * 6 * 49  # layers, levels, experts of a token
    of_levels = []
    for level in range(2):
        with model.base.experts[0].slot.use(ViewRouting()) as routing:
            model(torch.tensor([level]), *(x[level : level + 1] for x in given))
        of_levels.append(sum(routing.losses.values()))
    torch.testing.assert_close(found["loss"], sum(of_levels) / 2)


@pytest.mark.parametrize("mode", ["router_only", "skills_only", "all", "full"])
def test_adaptation_trains_token_routers_as_routers_and_experts_as_skills(mode) -> None:
    model = adapt_policies(build(), mode)
    for name, value in model.named_parameters():
        role = "skills" if ".experts.blocks." in name or name.startswith("inventory") else "router"
        role = "backbone" if name.startswith("base.") and ".experts." not in name else role
        assert value.requires_grad == (role in TRAINED_ROLES[mode]), name


def test_a_run_reports_balance_resumes_adapts_and_is_not_exported(tmp_path, monkeypatch) -> None:
    config = tmp_path / "tiny.yaml"
    changes = {"moe": MOE, "adapt": {"levels": ["GoToObj"], "n_updates": 1}}
    changes["trainer"] = {**TINY["trainer"], "max_epochs": 2}
    config.write_text(yaml12.dump({**TINY, **changes, "run": {"dir": str(tmp_path / "runs")}}))
    whole = train(config, "whole")
    with interrupted(5, monkeypatch):
        train(config, "stopped")
    assert_same_run(train(config, "stopped", resume=True), whole)
    z = column(whole.metrics, "train/balance/z")
    assert [value > 0 for value in z.values()] == [True, True]
    assert column(whole.metrics, "tokens/load_entropy")
    model, _ = load_policies(whole.path)
    counts = read_token_record(whole.path).counts  # over both episodes, greedy and sampled
    steps = [float(x["score"]) for x in read_csv(whole.results) if x["metric"] == "steps"]
    assert counts.sum((0, 2)).tolist() == [
        2 * 2 * 49 * 2 * (steps[x] + steps[3 + x]) for x in (0, 1)
    ]
    assert all(layer.router.bias.value.any() for layer in model.base.experts)
    given = ["-c", str(config), "--from", str(whole.path)]
    assert adapt.main(given) == 0
    with pytest.raises(CheckpointError, match="export does not work with section moe: exported"):
        export.main([str(whole.path), "--task", LEVELS[0], "--out", str(tmp_path / "out")])

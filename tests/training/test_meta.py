"""First-order MAML and Reptile against a plain loop, and in a run."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers.backbones import fill
from helpers.gyms import TASKS, write_config, write_gym
from mttl.assembly.model import build_model
from mttl.config.load import load_config
from mttl.training.loss import global_mean
from mttl.training.meta import MetaModule, reptile_gradients
from mttl.training.text_to_text import TextToTextModule

ONE_TASK = ("data.sampler={kind: homogeneous}", "backbone.train=false")
RATE = 0.3


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))


def make(config: Path, *settings: str) -> MetaModule:
    """Build a module that draws nothing: no noise in routing, no dropout."""
    settings = (*ONE_TASK, f"optim.meta.inner_lr={RATE}", *settings)
    loaded = load_config(str(config), list(settings))
    torch.manual_seed(0)
    built = build_model(loaded, list(TASKS))
    metrics = dict.fromkeys(TASKS, "EM")
    module = MetaModule(built.model, built.tokenizer, metrics, loaded.optim)
    module.model.eval()
    for seed, layer in enumerate(built.model.skilled_layers().values()):
        fill(layer.inventory, seed)
    return module


def one_task(task: int, n_rows: int = 8) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(task)
    ids = torch.randint(3, 90, (n_rows, 7), generator=generator)
    answers = torch.randint(3, 90, (n_rows, 4), generator=generator)
    mask, tasks = torch.ones_like(ids), torch.full((n_rows,), task)
    return {"input_ids": ids, "attention_mask": mask, "labels": answers, "task_ids": tasks}


def step_loss(module: TextToTextModule, batch: dict[str, Tensor], rows: slice) -> Tensor:
    losses, labels, _ = module.nll({name: value[rows] for name, value in batch.items()})
    return global_mean(losses, labels)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("kind", ["maml", "reptile"])
def test_gradients_are_those_of_a_plain_loop_over_tasks(kind, n_steps, config) -> None:
    module = make(config, f"optim.meta.kind={kind}", f"optim.meta.inner_steps={n_steps}")
    batches = [one_task(0, 12), one_task(2, 12)]
    before = {name: value.detach().clone() for name, value in trained(module).items()}
    expected = {name: torch.zeros_like(value) for name, value in before.items()}
    ends = []
    for batch in batches:
        own = copy.deepcopy(module)
        descent = torch.optim.SGD(trained(own).values(), lr=RATE)
        for step in range(n_steps):
            rows = (
                slice(0, 6)
                if kind == "maml"
                else slice(*(12 // n_steps * (step + i) for i in (0, 1)))
            )
            loss = step_loss(own, batch, rows)
            descent.zero_grad()
            loss.backward()
            descent.step()
        if kind == "maml":
            descent.zero_grad()
            loss = step_loss(own, batch, slice(6, 12))
            loss.backward()
        for name, value in trained(own).items():
            gradient = value.grad if kind == "maml" else before[name] - value.detach()
            expected[name] += torch.zeros_like(value) if gradient is None else gradient
        ends.append(loss.item())
    for batch, end in zip(batches, ends, strict=True):
        loss = module.training_step(batch, 0)
        assert loss.item() == pytest.approx(end, rel=1e-6)
        loss.backward()
    assert any(value.abs().max() > 1e-3 for value in expected.values())
    for name, value in trained(module).items():
        assert torch.equal(value, before[name])  # moved back, bit for bit
        # Single precision, summed in another order.
        torch.testing.assert_close(value.grad, expected[name], rtol=1e-5, atol=1e-7)


def test_half_precision_reads_the_weights_of_each_step() -> None:
    """Autocast keeps rounded weights as long as its block lasts."""
    value = nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [lambda: (x @ value).float().square().sum()] * 2
        found, last = reptile_gradients([value], losses, rate=0.125)
    # From 2 · 2²: each step subtracts 0.125 · 4, which halves the sums.
    assert last.item() == 2.0
    assert found[0].tolist() == [[0.75, 0.75]] * 2

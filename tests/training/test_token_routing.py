"""Token routing in training and adaptation: losses, loads, biases, modes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from helpers.backbones import tiny_llama, tiny_t5
from helpers.experts import N_EXPERTS, balanced, padded_batch, token_model, top2
from helpers.modes import adapted
from helpers.trainer import quiet_trainer
from mttl.adaptation.fine_tune import fine_tune
from mttl.adaptation.modes import apply_mode, parts_by_role
from mttl.config.optim_schema import AdamW
from mttl.io.errors import ConfigError
from mttl.routing.token.balance import BiasBalance
from mttl.skills import SkilledModel
from mttl.training.loss import global_mean
from mttl.training.report import count_tokens
from mttl.training.text_to_text import TextToTextModule
from mttl.training.token_balance import LOADS, BiasBalancing
from training.test_text_to_text import tokenizer

TASKS = torch.tensor([0, 2, 1])


def biased(place: Any) -> Any:
    return top2(place, bias=BiasBalance(N_EXPERTS, rate=0.5))


def module_of(model: SkilledModel, **settings: Any) -> TextToTextModule:
    metrics = {name: "EM" for name in "abc"[: model.router.n_tasks]}
    optimization = AdamW(kind="adamw", lr=0.1, schedule="constant", warmup=0)
    module = TextToTextModule(model, tokenizer(), metrics, optimization, **settings)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    return module


def batch() -> dict[str, Tensor]:
    return {**padded_batch(), "task_ids": TASKS}


def test_a_step_adds_what_layers_owe_and_counts_loads() -> None:
    model = token_model(tiny_t5(), router=balanced).train()
    module, inputs = module_of(model), batch()
    logged = {}
    module.log = lambda name, value, **settings: logged.update({name: float(value)})  # type: ignore
    step = module.training_step(inputs, 0)
    assert isinstance(step, dict)
    owed = logged["train/switch"] + logged["train/z"]
    assert step["loss"].item() == pytest.approx(logged["train/loss"] + owed, rel=1e-6)
    loads = step[LOADS]
    assert loads.shape == (len(model.token_layers()), N_EXPERTS + 1)
    for name, row in zip(model.token_layers(), loads, strict=True):
        mask = inputs["attention_mask"] if name.startswith("encoder") else inputs["labels"] != -100
        assert row[:-1].sum() == 2 * int((mask > 0).sum())
        assert row[-1] == 0


def test_a_step_of_several_batches_minimises_the_mean_of_what_they_owe() -> None:
    """Each owes for its own loads, whatever its number of tokens; summed loads would owe less."""
    model = token_model(tiny_t5(), router=balanced).train()
    batches = [batch(), {**padded_batch(seed=2), "task_ids": TASKS}]
    batches[1]["attention_mask"][0, 2:] = 0
    parameters = [p for p in model.parameters() if p.requires_grad]
    wanted = [torch.zeros_like(p) for p in parameters]
    for one in batches:
        losses, labels, routing = module_of(model).nll(one)
        total = global_mean(losses, labels) + sum(routing.losses.values())
        for mean, grad in zip(wanted, torch.autograd.grad(total, parameters), strict=True):
            mean += grad / len(batches)
    found: list[Tensor] = []

    class Gradients(Callback):
        def on_before_optimizer_step(self, *args: Any) -> None:
            found.extend(p.grad.clone() for p in parameters if p.grad is not None)

    trainer = quiet_trainer(
        max_steps=1, accumulate_grad_batches=len(batches), callbacks=[Gradients()]
    )
    trainer.fit(module_of(model), DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    # Halves of the loss rather than of the gradient: rounding.
    for value, mean in zip(found, wanted, strict=True):
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-7)
    routers = [layer.router.weight for layer in model.token_layers().values()]
    assert all(router.grad is not None for router in routers)


def biases(model: SkilledModel) -> list[Tensor]:
    return [layer.router.bias.value.clone() for layer in model.token_layers().values()]


def test_biases_move_against_the_load_once_a_step() -> None:
    model = token_model(tiny_t5(), router=biased).train()
    module, callback = module_of(model), BiasBalancing()
    strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)
    trainer: Any = SimpleNamespace(global_step=0, strategy=strategy)
    callback.on_train_start(trainer, module)
    outputs = module.training_step(batch(), 0)
    callback.on_train_batch_end(trainer, module, outputs, None, 0)
    assert not any(bias.any() for bias in biases(model))  # a batch of two: no step yet
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, module, outputs, None, 1)
    for bias, row in zip(biases(model), outputs[LOADS][:, :-1].float(), strict=True):
        assert torch.equal(bias, 0.5 * torch.sign(row.mean() - row))
    assert callback.loads is None


MODES = ("zero_shot", "router_only", "skills_only", "all", "from_scratch", "full")


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_trains_its_parts_and_leaves_the_model_as_it_was(mode: Any) -> None:
    model = token_model(tiny_t5(), router=biased)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    rows = {**padded_batch(), "task_ids": torch.zeros(3, dtype=torch.long), "rows": [0, 1, 2]}
    rows |= {"references": [["x"]] * 3, "inputs": ["x"] * 3, "samples": [0] * 3}
    rows["sources"] = [{"input": "x", "columns": {}}] * 3
    rows["generation_inputs"] = {key: rows[key] for key in ("input_ids", "attention_mask")}
    with adapted(model, mode):
        module = module_of(model, max_output_length=2)
        parts = parts_by_role(model)
        trained = {name for name, value in model.named_parameters() if value.requires_grad}
        wanted = mode not in ("zero_shot", "router_only")
        assert all(p.requires_grad == wanted for m in parts["skills"] for p in m.parameters())
        routers = mode in ("router_only", "all", "from_scratch", "full")
        assert any(".router.weight" in name for name in trained) == routers
        assert ("backbone.shared.weight" in trained) == (mode == "full")
        moved: list[bool] = []
        note = lambda: moved.append(any(bias.any() for bias in biases(model)))  # noqa: E731
        fine_tune(module, [rows], [rows], n_steps=1, eval_every=1, on_step=note)
        assert moved == ([] if mode == "zero_shot" else [routers])
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert flags == {name: value.requires_grad for name, value in model.named_parameters()}


def test_modes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="mode 'average' needs skills that tasks mix, but only"):
        apply_mode(token_model(tiny_t5()), "average")
    with pytest.raises(ConfigError, match="mode 'from_scratch' needs the backbone's feed-forward"):
        apply_mode(token_model(tiny_t5(), experts="copies"), "from_scratch")


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_choices_are_counted_by_task_and_token(name: str) -> None:
    model = token_model({"t5": tiny_t5, "llama": tiny_llama}[name]())
    inputs = batch()
    evaluated = {**inputs, "rows": [0, 1, 2]}
    counts = count_tokens(module_of(model), [evaluated, evaluated])
    n_layers = len(model.token_layers())
    assert counts.tasks.shape == (n_layers, 3, N_EXPERTS)
    mask = inputs["attention_mask"].sum(1)
    for task, row in zip(TASKS.tolist(), mask, strict=True):
        assert counts.tasks[0, task].sum() == 2 * 2 * row
    found = counts.bigrams(0)
    real = inputs["attention_mask"].bool()
    tokens, table = found.table(found.tokens)
    wanted, frequency = inputs["input_ids"][real].unique(return_counts=True)
    assert tokens.tolist() == wanted.tolist()
    assert table.sum(1).tolist() == (4 * frequency).tolist()
    starts = found.counts[found.previous == counts.n_tokens].sum()
    assert starts == 4 * len(TASKS)

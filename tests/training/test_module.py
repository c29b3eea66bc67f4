"""What checkpoints hold and where streams of random numbers go on, for text and for policies."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from helpers.backbones import tiny_llama, tiny_t5
from helpers.skills import skilled
from mttl.babyai.policy_module import PolicyModule
from mttl.config.babyai_schema import Rl
from mttl.config.optim_schema import AdamW
from mttl.io.errors import CheckpointError, ConfigError
from mttl.routing import PolytroponRouter
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory
from mttl.training.module import ResumableModule
from mttl.training.text_to_text import TextToTextModule


def text(train_backbone: bool = False, backbone: Any = tiny_t5) -> TextToTextModule:
    model = skilled(backbone(), train_backbone=train_backbone)
    return TextToTextModule(model, None, {"one": "EM"})  # type: ignore[arg-type]


def policies(train_base: bool = True) -> PolicyModule:
    base = nn.Linear(3, 2)
    inventory = ModuleInventory(base, 2, kind="dense")
    router = PolytroponRouter(inventory.n_groups, 2, 1, 2)
    model = ComposedModel(base, inventory, router)
    model.base.requires_grad_(train_base)
    return PolicyModule(model, ("one", "two"), AdamW(kind="adamw"), Rl(levels=["one", "two"]))


BOTH = pytest.mark.parametrize("build", [text, policies])
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def saved(trained: ResumableModule) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"state_dict": dict(trained.state_dict()), "global_step": 7}
    trained.on_save_checkpoint(checkpoint)
    return checkpoint


def begin(trained: ResumableModule, **trainer: int) -> None:
    given = {"world_size": 1, "global_step": 0, "global_rank": 0} | trainer
    trained._trainer = SimpleNamespace(**given)  # type: ignore
    trained.on_train_start()


def test_time_alone_is_no_number_of_steps() -> None:
    trainer: Any = SimpleNamespace(precision="32-true", estimated_stepping_batches=math.inf)
    trained = policies()
    trained._trainer = trainer
    with pytest.raises(ConfigError, match=r"trainer.max_time does not define the number of steps"):
        trained.configure_optimizers()


@pytest.mark.parametrize("train_backbone", [False, True])
def test_a_checkpoint_holds_what_is_trained_and_the_buffers(train_backbone: bool) -> None:
    trained = text(train_backbone)
    trainable = {name for name, value in trained.named_parameters() if value.requires_grad}
    kept = set(saved(trained)["state_dict"])
    assert trainable | {"model.router.temperature"} <= kept
    # Tied embeddings have three names; frozen, they are kept under none.
    assert ("model.backbone.lm_head.weight" in kept) is train_backbone
    assert any("embed_tokens" in name for name in kept) is train_backbone


@pytest.mark.parametrize("build", [lambda: text(backbone=tiny_llama), policies])
def test_weights_alone_can_be_loaded(build: Any, tmp_path: Path) -> None:
    source, target = build(), build()
    target.load_state_dict(source.state_dict())
    with torch.no_grad():
        for parameter in target.model.parameters():
            if parameter.requires_grad:
                parameter.add_(1)
    torch.save(saved(source), tmp_path / "best.ckpt")
    torch.manual_seed(3)
    assert target.load_weights(tmp_path / "best.ckpt") == 7
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    begin(target)  # the random state of the checkpoint is not part of it
    assert torch.initial_seed() == 3
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))


@BOTH
@pytest.mark.parametrize("name", ["model.router.logits", "model.router.temperature"])
def test_a_checkpoint_of_other_settings_is_refused(build: Any, name: str) -> None:
    checkpoint = saved(build())
    del checkpoint["state_dict"][name]
    with pytest.raises(
        CheckpointError,
        match=f"the checkpoint lacks 1 trained tensors, first {name}; it belongs to a",
    ):
        build().on_load_checkpoint(checkpoint)


@BOTH
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_resumed_run_draws_on(build: Any, device: str) -> None:
    trained = build().to(device)
    checkpoint = saved(trained)
    expected = torch.rand(3, device=device)
    trained.on_load_checkpoint(checkpoint)
    begin(trained)
    assert torch.equal(torch.rand(3, device=device), expected)
    again = torch.rand(3, device=device)
    begin(trained)  # a second training starts from nothing
    assert not torch.equal(torch.rand(3, device=device), again)


@BOTH
def test_each_process_has_a_stream_of_its_own_before_and_after_a_resume(build: Any) -> None:
    def draw(rank: int, step: int) -> tuple[float, ...]:
        torch.manual_seed(0)
        begin(build_once, world_size=2, global_rank=rank, global_step=step)
        return tuple(torch.rand(2).tolist())

    build_once = build()
    assert len({draw(rank, step) for rank in (0, 1) for step in (0, 1, 5)}) == 6


@BOTH
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_processes_begins_new_streams(build, before, after) -> None:
    trained = build()
    checkpoint = saved(trained)
    checkpoint["random_states"] *= before
    known = torch.rand(2)
    streams = {tuple(known.tolist())}
    for rank in range(after):
        torch.manual_seed(0)
        trained.on_load_checkpoint(checkpoint)
        begin(trained, world_size=after, global_rank=rank, global_step=3)
        streams.add(tuple(torch.rand(2).tolist()))
    assert len(streams) == 1 + after

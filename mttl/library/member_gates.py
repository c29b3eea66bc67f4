"""Preparation of a library run's router on the members' tasks: gates (Phatgoose) and examples."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import Any

import torch
from lightning_fabric.utilities import move_data_to_device

from mttl.assembly.build_backbone import build_tokenizer
from mttl.assembly.model import Built
from mttl.checkpoints.run_callbacks import not_finite
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym
from mttl.data.data_module import TextToTextDataModule
from mttl.models.backbone import is_decoder_only
from mttl.routing.task.fixed import PrivateRouter
from mttl.routing.task.prompt_router import RetrievalRouter
from mttl.routing.token.members import PhatgooseRouter
from mttl.runtime.processes import device_of
from mttl.skills.skilled_model import SkilledModel
from mttl.training.loss import global_mean
from mttl.training.task_embeddings import embed_tasks
from mttl.training.text_to_text import TextToTextModule


def prepare_members(config: Config, imported: Built) -> None:
    """Train the gates of members, or embed examples of their tasks, if the router needs it.

    The gym is opened only then.
    """
    model, gates = imported.model, None if config.moe is None else config.moe.router
    if not model.router.seen and "gate_steps" not in getattr(gates, "own_settings", ()):
        return
    gym = open_gym(config)
    tokenizer = build_tokenizer(config.backbone)
    metrics = {task: gym.metric(task) for task in imported.tasks}
    data = TextToTextDataModule(
        *(gym, imported.tasks, tokenizer),
        config.data.model_copy(update={"cache_dir": None}),
        decoder_only=is_decoder_only(model.backbone),
        seed=config.run.seed,
    )
    embed_tasks(model, data)
    if isinstance(model.router, RetrievalRouter):
        model.router.members.copy_(model.router.get_buffer("shown_examples"))
    if gates is not None and "gate_steps" in getattr(gates, "own_settings", ()):
        module = TextToTextModule(model, tokenizer, metrics).to(device_of())
        train_gates(module, data.train_dataloader(), n_steps=gates.gate_steps, lr=gates.gate_lr)
        module.cpu()


def train_gates(
    module: TextToTextModule, batches: Iterable[Mapping[str, Any]], *, n_steps: int, lr: float
) -> None:
    """Train only the gates of all members, jointly.

    Task t trains the gates of member t; dropout is off. (The paper trains one member after another;
    here a batch has rows of all tasks.)

    Raises:
        DivergedError: If the trained gates are not finite.
    """
    model = module.model
    gates = [layer.router.gates for layer in model.token_layers().values()]
    trained = {name: value.requires_grad for name, value in model.named_parameters()}
    model.requires_grad_(False)
    optimizer = torch.optim.AdamW(gates, lr=lr, weight_decay=0.0)
    module.eval()
    with own_members(model):
        for gate in gates:
            gate.requires_grad_(True)
        for batch in islice(chain.from_iterable(repeat(batches)), n_steps):
            losses, labels, _ = module.nll(move_data_to_device(batch, module.device))
            optimizer.zero_grad()
            global_mean(losses, labels).backward()
            optimizer.step()
    if not all(gate.isfinite().all() for gate in gates):
        raise not_finite("a loss or a gate is not finite", n_steps, "Lower moe.router.gate_lr")
    for name, value in model.named_parameters():
        value.requires_grad_(trained[name])
        value.grad = None


@contextmanager
def own_members(model: SkilledModel) -> Iterator[None]:
    """Send every token to the gated member of its task within a ``with`` block."""
    layers, router = list(model.token_layers().values()), model.router
    device = next(model.parameters()).device
    priors = [(layer.prior, layer.group) for layer in layers]
    try:
        model.router = PrivateRouter(1, router.n_tasks).to(device)
        for layer in layers:
            assert isinstance(layer.router, PhatgooseRouter)
            layer.prior, layer.group, layer.router.learning = "mask", 0, True
        yield
    finally:
        model.router = router
        for layer, prior in zip(layers, priors, strict=True):
            layer.prior, layer.group = prior
            layer.router.learning = False

"""What two processes that share one model compute, and what one process alone does."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from helpers.backbones import batch, fill, tiny_llama, tiny_t5
from helpers.experts import token_model
from helpers.quantised import save_backbone
from helpers.skills import INVENTORIES, OTHERS, PLACED, attach_kind, kind_class, make_kind, spread
from mttl.aggregation.packed_weights import packed_layers
from mttl.checkpoints.whole_tensors import (
    for_first,
    load_whole,
    of_first,
    whole,
    whole_parameters,
)
from mttl.models.backbone import load_pretrained
from mttl.models.teacher_forcing import forced_logits
from mttl.routing import PolytroponRouter, RoutingSlot, TaskRouter, XLoRARouter
from mttl.routing.task.priors import IBP, RoutingPrior
from mttl.skills import KINDS, SkilledModel, attach_skills
from mttl.training.distributed import shard_model

WORLD, STEPS, RATE, NORM = 2, 2, 0.1, 0.5
PRIOR = RoutingPrior(ibp=IBP(2.0, 0.1))
FAMILIES = {"t5": tiny_t5, "llama": tiny_llama}
# A vector of the whole model cannot be sharded.
TASK_KINDS = [kind for kind in {**INVENTORIES, **OTHERS, **PLACED} if kind != "intrinsic"]


def packed_backbone() -> PreTrainedModel:
    with TemporaryDirectory() as own:
        folder = of_first(save_backbone(Path(own), "t5"))  # transformers writes in the first alone
        backbone = load_pretrained(str(folder), quantize="nf4")
        dist.barrier()
    return backbone


def task_model(
    family: str,
    kind: str = "lora-factors",
    *,
    train_backbone: bool = False,
    dtype: torch.dtype = torch.float32,
    checkpointing: bool = False,
    **router: Any,
) -> SkilledModel:
    backbone = packed_backbone() if family == "nf4" else FAMILIES[family]().to(dtype)
    backbone, slot = backbone.requires_grad_(train_backbone), RoutingSlot()
    if kind in INVENTORIES or kind in OTHERS:
        attachment = attach_skills(
            backbone,
            lambda i, o: make_kind(kind, i, o, 3),
            targets=("attention", "mlp"),
            slot=slot,
            attachment_point="block" if kind_class(kind).attachment_point == "block" else "linear",
        )
    else:
        attachment = attach_kind(backbone, kind, n_skills=3, targets=["attention"], slot=slot)
    groups = len(attachment.groups)
    model = SkilledModel(
        backbone, spread(PolytroponRouter(groups, 3, 1, 3, relaxed=False, **router)), slot
    )
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
        if kind == "diff_pruning":  # masks that are 1 whatever each process draws
            nn.init.constant_(layer.inventory.logits, 100.0)
    if checkpointing:
        model.enable_gradient_checkpointing()
    return model


class PromptRouter(TaskRouter):
    """Mixes skills by what it sees of prompts."""

    def __init__(self, n_groups: int, n_features: int) -> None:
        super().__init__(n_groups, 3, 1, 3)
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(n_features, n_groups * 3, generator=generator))

    def forward(self, task_ids: Tensor, prompts: Tensor | None = None) -> Tensor:
        if prompts is None:
            prompts = self.weight.new_ones(len(task_ids), len(self.weight))
        weights = (prompts @ self.weight).unflatten(1, (self.n_groups, 1, 3)).softmax(-1)
        return weights.transpose(0, 1)

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "PromptRouter":
        raise NotImplementedError


def states_model() -> SkilledModel:
    model = task_model("llama", "lora-outputs")
    router = XLoRARouter(model.router.n_groups, 3, 1, 3, 16, depth=2, hidden_size=6, dropout=0.0)
    fill(router)
    return SkilledModel(model.backbone, router, model.slot)


def prompt_model() -> SkilledModel:
    model = task_model("llama")
    router = PromptRouter(model.router.n_groups, 16)
    return SkilledModel(model.backbone, router, model.slot)


_TASKS: dict[str, Callable[[], SkilledModel]] = {
    f"{family}, {kind}": partial(task_model, family, kind)
    for family in FAMILIES
    for kind in TASK_KINDS
}
CASES = _TASKS | {
    "t5, tokens": lambda: token_model(tiny_t5(), targets=("attention", "mlp")),
    "llama, tokens": lambda: token_model(tiny_llama(), targets=("attention", "mlp")),
    "llama, token adapters": lambda: token_model(tiny_llama(), experts="adapter"),
    "llama, token blocks": lambda: token_model(tiny_llama(), experts="copies"),
    "t5, prior": partial(task_model, "t5", prior=PRIOR),
    "t5, checkpointing": partial(task_model, "t5", checkpointing=True),
    "t5, all": partial(task_model, "t5", prior=PRIOR, checkpointing=True, train_backbone=True),
    "llama, prompts": prompt_model,
    "llama, states": states_model,
    "llama, bfloat16": partial(task_model, "llama", dtype=torch.bfloat16),
    "nf4, lora-factors": partial(task_model, "nf4"),
    "nf4, supermask": partial(task_model, "nf4", "supermask"),
    "nf4, checkpointing": partial(task_model, "nf4", checkpointing=True),
}
_FIRST = {kind_class(name): name for name in reversed(TASK_KINDS)}
_OF_TASKS = [kind for kind in KINDS.values() if "task" in kind.uses]
_KINDS = [f"{family}, {_FIRST[kind]}" for family, kind in zip(cycle(FAMILIES), _OF_TASKS)]
# A few kinds of skill, and of everything else; the others are slow.
SOME = ["t5, all", "llama, token adapters", "llama, bfloat16", *_KINDS[::9]]
# The slow part is to put every block together for every token.
ANSWERED = ("all", "lora-factors", "tokens", "sparse-deltas", "states")


def steps(model: SkilledModel, share: slice, world: int) -> list[Tensor]:
    """Train on a share of a batch of four rows; return the losses of the whole batch."""
    model.train()
    rows = {name: value[share] for name, value in batch(4).items()}
    rows["attention_mask"] = torch.ones_like(rows["input_ids"])
    task_ids = torch.tensor([0, 1, 2, 0])[share]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, lr=RATE), []
    for _ in range(STEPS):
        routing = model.route(task_ids, inputs=rows)
        with model.slot.use(routing):
            logits, labels, places = forced_logits(model.backbone, rows)
        loss = cross_entropy(logits.float(), labels.flatten()[places])
        loss = loss + model.router.prior_loss() + sum(routing.losses.values())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, NORM)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        if world > 1:
            dist.all_reduce(mean)
        losses.append(mean)
    return losses


def answers(model: SkilledModel, share: slice, n_beams: int, length: int) -> list[list[int]]:
    """Generate for a share of the batch, so many tokens."""
    model.eval()
    ids = batch(4)["input_ids"][share]
    found = model.generate(
        torch.tensor([0, 1, 2, 0])[share],
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=n_beams,
        do_sample=False,
        min_new_tokens=length,
        max_new_tokens=length,
    )
    return found[:, -length:].tolist()


def compare(name: str, rank: int, mesh: Any) -> dict[str, Any]:
    """Do a case with two processes, and in the first one also alone; return what differs."""
    torch.manual_seed(0)
    model = CASES[name]()
    alone = copy.deepcopy(model)
    if rank > 0:  # weights come from the first, and their types
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
            for layer in packed_layers(model).values():
                layer.weight.quant_state.absmax.fill_(7.0)  # type: ignore[union-attr]
        if name.startswith("llama"):
            model.backbone.float().to("meta")
    shard_model(model, mesh, torch.device("cpu"))
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    shares = [slice(0, 2), slice(2, 4)]
    losses = steps(model, shares[rank], WORLD)
    lengths = [3, 4] if name.split(", ")[1] in ANSWERED else []
    # The process with the shorter answers goes on until the other has ended.
    found = [answers(model, shares[rank], beams, lengths[rank]) for beams in lengths and (1, 2)]
    with whole_parameters(model.router), torch.no_grad():
        probabilities = model.router.probabilities()
    state = {key: for_first(value) for key, value in model.state_dict().items()}
    expected = {key: value.clone() for key, value in alone.state_dict().items()}
    load_whole(model, expected)
    restored = {key: whole(value) for key, value in model.state_dict().items()}
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, found)
    if dist.get_rank():
        assert not any(state[key].numel() for key, _ in alone.named_parameters()), name
        return {}
    return {
        "losses": torch.stack(losses),
        "losses alone": torch.stack(steps(alone, slice(0, 4), 1)),
        "answers": everyone,
        "answers alone": [
            [answers(alone, share, beams, length) for beams in (1, 2)]
            for share, length in zip(shares, lengths, strict=False)
        ],
        "state": state,
        "state alone": alone.state_dict(),
        "restored": all(torch.equal(restored[key], expected[key]) for key in expected),
        "probabilities": probabilities,
        "probabilities alone": alone.router.probabilities().detach(),
    }


def work(rank: int, folder: Path, names: list[str]) -> None:
    """Be one of the processes; the first one leaves the results in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    results = {name: compare(name, rank, mesh) for name in names}
    if rank == 0:
        torch.save(results, folder / "results.pt")
        dist.destroy_process_group()

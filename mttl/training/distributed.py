"""Several processes of one training: a model that is sharded, and experts that are shared out.

Every process holds a part of each tensor of a sharded model. A block is put together just before it
computes and taken apart afterwards, and gradients and the optimizer's state exist in parts only.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard
from torch.optim import Optimizer

from mttl.checkpoints.whole_tensors import (
    for_first,
    is_first,
    is_sharded,
    load_whole,
    of_first,
    spread_like,
)
from mttl.moe.parallel import shard_experts
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.targets import block_paths


def shard_model(model: SkilledModel, mesh: DeviceMesh, device: torch.device) -> None:
    """Give every process its part of the first one's model, in place.

    Only the first process needs weights: those of the others may be on the meta device. No process
    but the first ever holds more than one block whole. A model that is spread already stays as it
    is.
    """
    if is_sharded(model):
        return
    backbone, received = model.backbone, set()
    if hasattr(backbone, "generation_config"):  # may stand beside the weights, in a file
        backbone.generation_config = of_first(backbone.generation_config)
    blocks = [backbone.get_submodule(path) for path in block_paths(backbone)]
    # Backbone and router are called one after the other: each is a root. A root stays whole until
    # its backward pass is over, so that the router's prior can read its parameters.
    for unit in (*blocks, backbone, model.router):
        _receive(unit, device, received)
        fully_shard(unit, mesh=mesh, shard_placement_fn=partial(_placement, mesh.size()))
    # Processes generate as many tokens as the one with the longest answer.
    backbone.generate = partial(backbone.generate, synced_gpus=mesh.size() > 1)  # type: ignore
    # What calls parts of the backbone, but not the backbone itself.
    called = ["generate", *(["get_input_embeddings"] if "prompts" in model.router.seen else [])]
    for name in called:
        register_fsdp_forward_method(backbone, name)
    tell_scales(model)


def tell_scales(model: nn.Module) -> None:
    """Let the parts of 4-bit weights tell their scales, which moving a sharded model forgets."""
    for module in model.modules():
        if state := getattr(module, "quant_state", None):
            module.weight.quant_state = state  # type: ignore[union-attr]


def _receive(unit: nn.Module, device: torch.device, received: set[nn.Module]) -> None:
    """Put the first process's parameters and buffers of a unit on the device of each.

    Modules that were ``received`` already are left out. The scales of 4-bit weights become those of
    the modules, where bitsandbytes looks for them when a weight that was put together has none.
    """
    found = [
        (module, name, tensor)
        for module in unit.modules()
        if module not in received
        for name, tensor in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False),
        )
    ]
    received.update(unit.modules())
    told = of_first([(t.dtype, t.shape, getattr(t, "quant_state", None)) for *_, t in found])
    copies: dict[Tensor, Tensor] = {}  # tied parameters stay tied
    for (module, name, tensor), (dtype, shape, state) in zip(found, told, strict=True):
        if tensor not in copies:
            copies[tensor] = _tensor_of_first(tensor, dtype, shape, device)
        setattr(module, name, copies[tensor])
        if state is not None:
            state.to(device)
            module.quant_state = state


def _tensor_of_first(
    tensor: Tensor, dtype: torch.dtype, shape: torch.Size, device: torch.device
) -> Tensor:
    if is_first():
        value = tensor.detach().to(device).contiguous()
    else:
        value = torch.empty(shape, dtype=dtype, device=device)
    if value.numel():  # as bytes: not every backend sends every type
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


def _placement(n_processes: int, parameter: nn.Parameter) -> Shard | None:
    """Cut along the first axis that all processes get equal parts of.

    The first axis of skills is often shorter than there are processes.
    """
    sizes = enumerate(parameter.shape)
    return next((Shard(axis) for axis, size in sizes if size % n_processes == 0), None)


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for sharded training (FSDP2).

    A checkpoint is one file of whole tensors, with the names and the optimizer's state that it has
    without sharding: a run may go on with another strategy, or another number of processes.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """The optimizer's state is restored as that of other strategies is."""
        return True

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return what training changes, whole, to the first process."""
        module = self.lightning_module
        assert module is not None
        parameters = module.named_parameters(remove_duplicate=False)
        frozen = {name for name, value in parameters if not value.requires_grad}
        state = module.state_dict().items()
        return {name: for_first(value) for name, value in state if name not in frozen}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        load_whole(self.lightning_module, checkpoint["state_dict"])

    def teardown(self) -> None:
        super().teardown()
        assert self.lightning_module is not None
        tell_scales(self.lightning_module)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state, whole, to the first process."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer._optimizer
        return apply_to_collection(optimizer.state_dict(), Tensor, for_first)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            groups = zip(saved["param_groups"], optimizer.param_groups, strict=True)
            owners = {
                number: parameter
                for theirs, ours in groups
                for number, parameter in zip(theirs["params"], ours["params"], strict=True)
            }
            state = {
                number: {name: spread_like(value, owners[number]) for name, value in own.items()}
                for number, own in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": state})

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)


class ExpertSharing(Callback):
    """Shares the experts of the model out before data-parallel training wraps it."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            shard_experts(pl_module)

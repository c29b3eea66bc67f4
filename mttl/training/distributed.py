"""Training in several processes: sharded models and distributed experts.

Each process has a shard of every tensor of a sharded model. A block is gathered just before its
computation and freed afterwards; gradients and the optimizer's state exist only as shards.
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

from mttl.checkpoints.whole_tensors import for_first, is_sharded, load_whole, of_first, spread_like
from mttl.moe.parallel import shard_experts
from mttl.runtime.processes import rank
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.targets import block_paths


def shard_model(model: SkilledModel, mesh: DeviceMesh, device: torch.device) -> None:
    """Shard the first process's model over all processes, in place.

    Only the first process needs weights; the others may be on the meta device. Other processes
    never have more than one full block. A sharded model is not changed.
    """
    if is_sharded(model):
        return
    backbone, received = model.backbone, set()
    if hasattr(backbone, "generation_config"):  # may come from a file next to the weights
        backbone.generation_config = of_first(backbone.generation_config)
    blocks = [backbone.get_submodule(path) for path in block_paths(backbone)]
    # Backbone and router are separate roots. A root stays gathered until its backward pass is over,
    # so that the router's prior can read its parameters.
    for unit in (*blocks, backbone, model.router):
        _receive(unit, device, received)
        fully_shard(unit, mesh=mesh, shard_placement_fn=partial(_placement, mesh.size()))
    # All processes generate as many tokens as the one with the longest answer.
    backbone.generate = partial(backbone.generate, synced_gpus=mesh.size() > 1)  # type: ignore
    # Methods that call parts of the backbone, but not its forward.
    called = ["generate", *(["get_input_embeddings"] if "prompts" in model.router.seen else [])]
    for name in called:
        register_fsdp_forward_method(backbone, name)
    tell_scales(model)


def tell_scales(model: nn.Module) -> None:
    """Attach the scales to 4-bit weights, which lose them when a sharded model is moved."""
    for module in model.modules():
        if state := getattr(module, "quant_state", None):
            module.weight.quant_state = state  # type: ignore[union-attr]


def _receive(unit: nn.Module, device: torch.device, received: set[nn.Module]) -> None:
    """Copy the first process's tensors of a unit's new modules to each process's device."""
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
    meta = of_first([(t.dtype, t.shape, getattr(t, "quant_state", None)) for *_, t in found])
    copies: dict[Tensor, Tensor] = {}  # tied parameters remain tied
    for (module, name, tensor), (dtype, shape, state) in zip(found, meta, strict=True):
        if tensor not in copies:
            copies[tensor] = _tensor_of_first(tensor, dtype, shape, device)
        setattr(module, name, copies[tensor])
        if state is not None:  # scales of 4-bit weights, where bitsandbytes looks for them
            state.to(device)
            module.quant_state = state


def _tensor_of_first(
    tensor: Tensor, dtype: torch.dtype, shape: torch.Size, device: torch.device
) -> Tensor:
    if rank() == 0:
        value = tensor.detach().to(device).contiguous()
    else:
        value = torch.empty(shape, dtype=dtype, device=device)
    if value.numel():  # as bytes, because not every backend supports every type
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


def _placement(n_processes: int, parameter: nn.Parameter) -> Shard | None:
    """Shard along the first axis that is divisible by the number of processes."""
    sizes = enumerate(parameter.shape)
    return next((Shard(axis) for axis, size in sizes if size % n_processes == 0), None)


class ShardedStrategy(ModelParallelStrategy):
    """Lightning strategy for sharded training (FSDP2).

    A checkpoint is one file of full tensors, as without sharding, so a run can continue with
    another strategy or number of processes.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """True: the optimizer's state is restored as in other strategies."""
        return True

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the full trained tensors on the first process."""
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
        """Return the optimizer's full state on the first process."""
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
    """Distributes the experts over processes before data-parallel training wraps the model."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            shard_experts(pl_module)

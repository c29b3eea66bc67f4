"""Lightning's strategy for sharded training, whose checkpoints are those of any other strategy."""

from collections.abc import Mapping
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer

from mttl.checkpoints.whole_tensors import for_first, load_whole, spread_like
from mttl.training.distributed.shard_model import tell_scales


class ShardedStrategy(ModelParallelStrategy):
    """Shards over all processes (FSDP2).

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
        """Form one mesh of all processes."""
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
        """Put whole tensors back."""
        assert self.lightning_module is not None
        load_whole(self.lightning_module, checkpoint["state_dict"])

    def teardown(self) -> None:
        """Move the model to the processor."""
        super().teardown()
        assert self.lightning_module is not None
        tell_scales(self.lightning_module)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state, whole, to the first process."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer._optimizer
        return apply_to_collection(optimizer.state_dict(), Tensor, for_first)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Put whole states back."""
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
        """Read a checkpoint, as other strategies do."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

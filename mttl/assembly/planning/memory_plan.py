"""What one process of a run needs: the parts of its memory, alone or shared with others."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from mttl.assembly.planning.fake_model import fake_model
from mttl.assembly.planning.fake_passes import GRADIENTS, generation_bytes, training_bytes
from mttl.config.backbone_schema import Quantisation
from mttl.config.optim_schema import Adafactor, Optim
from mttl.config.schema import Config
from mttl.io.errors import ConfigError
from mttl.models.quantised import GROUPS
from mttl.skills.targets import block_paths, inside_block
from mttl.training.optim import parameter_roles

GIB = 2**30
# An allocator keeps pieces that fit nothing, and a device its own code: plans leave this much.
USABLE = 0.9
BLOCKS_AT_ONCE = 2  # the one that computes, and the next one, which is fetched meanwhile
# Of a weight in few bits: scales and zero points of its group included.
BYTES_OF = {"nf4": 0.5 + 4 / 64, "int8": 1.0, "int4": 0.5 + 4 / 32}


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of one process's memory at its peaks, in bytes."""

    training: Mapping[str, int]
    answering: Mapping[str, int]  # while answers are generated, as between two steps

    @property
    def peak(self) -> int:
        """The larger of both sums."""
        return max(sum(self.training.values()), sum(self.answering.values()))

    def fits(self, gib: float) -> bool:
        """Tell whether a device of so many GiB is large enough, with a tenth to spare."""
        return self.peak <= USABLE * gib * GIB


@dataclass(frozen=True)
class Needs:
    """What a run needs, however many processes it has; in bytes."""

    weights: Mapping[str, int]  # by part
    block: int  # weights of the largest block, skills included
    apart: int  # weights in no block
    trained: int  # weights that are trained
    block_trained: int  # of them, those of the largest block
    optimizer: int
    training: Mapping[str, int]  # what a step needs beside these, by kind
    answering: Mapping[str, int]
    # By group size: weights of linear layers that can be in few bits, and their entries.
    linear: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    largest: int = 0  # weight of the largest linear layer

    def plan(
        self, strategy: str, n_processes: int, quantize: Quantisation | None = None
    ) -> MemoryPlan:
        """Return what each of some processes holds.

        The strategy ``"fsdp2"`` shares weights, gradients and the optimizer's state out. Of linear
        layers of the backbone in few bits, one at a time is in many while it computes.
        """
        steady = {**self.weights, "optimizer": self.optimizer}
        if quantize is not None:
            n_bytes, n_entries = self.linear[GROUPS[quantize]]
            full = next(part for part in steady if part.startswith("backbone"))
            steady[full] -= n_bytes
            steady[f"backbone ({quantize})"] = int(n_entries * BYTES_OF[quantize])
            steady["a layer in full"] = self.largest
        own = Counter(self.training)
        kept_gradients = self.trained
        if strategy == "fsdp2" and n_processes > 1:
            steady = {part: -(-size // n_processes) for part, size in steady.items()}
            if quantize is not None:  # both are whole in each process
                steady["a layer in full"] = self.largest
                scales = 4 * self.linear[GROUPS[quantize]][1] // GROUPS[quantize]
                steady["scales of others"] = scales - scales // n_processes
            whole = self.apart + BLOCKS_AT_ONCE * self.block
            steady["blocks put together"] = whole - whole // n_processes
            kept_gradients = -(-self.trained // n_processes)
            own[GRADIENTS] = own[GRADIENTS] // n_processes + self.block_trained
        elif n_processes > 1:
            steady["buckets of gradients"] = self.trained
        step = {**steady, **own}
        after = {**steady, GRADIENTS: kept_gradients}  # while the optimizer takes its step
        answering = {**after, **self.answering}
        return MemoryPlan(max(step, after, key=lambda parts: sum(parts.values())), answering)


def needs_of(config: Config, tasks: Sequence[str], *, answers: bool = True) -> Needs:
    """Return what a run needs, from its configuration and the architecture of its backbone."""
    try:
        model = fake_model(config, tasks)
        training = training_bytes(model, config)
        answering = generation_bytes(model, config) if answers else {}
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigError(
            f"the memory of this configuration depends on what it reads ({error}): use "
            "skills.support: random"
        ) from error
    roles = parameter_roles(model)
    weights: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        role = roles.get(name, "backbone")
        weights[f"{role} ({str(parameter.dtype).removeprefix('torch.')})"] += parameter.nbytes
    weights["buffers"] = sum(buffer.nbytes for buffer in model.buffers())
    trained = [p for p in model.parameters() if p.requires_grad]
    blocks = [model.backbone.get_submodule(path) for path in block_paths(model.backbone)]
    in_blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
    return Needs(
        weights=dict(weights),
        block=max((_bytes(block.parameters()) for block in blocks), default=0),
        apart=_bytes(p for p in model.parameters() if id(p) not in in_blocks),
        trained=_bytes(trained),
        block_trained=max(
            (_bytes(p for p in block.parameters() if p.requires_grad) for block in blocks),
            default=0,
        ),
        optimizer=sum(optimizer_bytes(config.optim, parameter) for parameter in trained),
        linear={group: _in_few_bits(model.backbone, group) for group in GROUPS.values()},
        largest=max((m.weight.nbytes for m in model.modules() if type(m) is nn.Linear), default=0),
        training=training,
        answering=answering,
    )


def optimizer_bytes(optim: Optim, parameter: Tensor) -> int:
    """Return the bytes of an optimizer's state for a parameter."""
    n_entries = 2 * parameter.numel()
    if isinstance(optim, Adafactor):
        rows, columns = parameter.shape[:-1], (*parameter.shape[:-2], *parameter.shape[-1:])
        n_entries = parameter.numel()
        if parameter.ndim > 1:
            n_entries = torch.Size(rows).numel() + torch.Size(columns).numel()
    return n_entries * parameter.element_size()


def _in_few_bits(backbone: nn.Module, group: int) -> tuple[int, int]:
    """Return bytes and entries of the linear layers in blocks whose rows are whole groups."""
    blocks = block_paths(backbone)
    single = tuple(getattr(backbone, "_keep_in_fp32_modules", None) or ())
    found = [
        module.weight
        for path, module in backbone.named_modules()
        if type(module) is nn.Linear
        and module.in_features % group == 0
        and inside_block(path, blocks)
        and "inventory" not in path.split(".")
        and path.removesuffix(".base").rpartition(".")[2] not in single
    ]
    return _bytes(found), sum(weight.numel() for weight in found)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

"""Memory plan of a run's process, for one or several processes, from a model of fake tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from transformers import PreTrainedModel

from mttl.assembly.build_backbone import architecture
from mttl.assembly.build_heads import build_heads
from mttl.assembly.model import assemble, freeze_skills
from mttl.assembly.planning.fake_passes import GRADIENTS, generation_bytes, training_bytes
from mttl.config.backbone_schema import Backbone, Quantisation, RandomBackbone
from mttl.config.optim_schema import Adafactor, Optim
from mttl.config.schema import Config
from mttl.io.errors import ConfigError
from mttl.io.files import shipped_folder
from mttl.models.backbone import choose_trained, freeze_unread
from mttl.models.quantised import GROUPS
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.targets import block_paths, inside_block
from mttl.skills.weights.sparse import SparseInventory
from mttl.tasks.head_form import HeadForm
from mttl.training.optim import parameter_roles

GIB = 2**30
# Bytes per quantised weight, including scales and zero points of its group.
BYTES_OF = {"nf4": 0.5 + 4 / 64, "int8": 1.0, "int4": 0.5 + 4 / 32}
# Hub models whose configuration is shipped in configs/sizes.
SHIPPED = {"facebook/bart-large": "bart_large"}
# Trainer precisions with other than single-precision weights.
WHOLE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one process at its peaks, by part, in bytes."""

    training: Mapping[str, int]
    answering: Mapping[str, int]  # during generation between two steps

    @property
    def peak(self) -> int:
        """Larger total of training and answering."""
        return max(sum(self.training.values()), sum(self.answering.values()))

    def fits(self, gib: float) -> bool:
        """Return whether a device with ``gib`` GiB is large enough, with 10 % to spare."""
        return self.peak <= 0.9 * gib * GIB  # the rest is for fragmentation and device code


@dataclass(frozen=True)
class Needs:
    """Memory needs of a run, independent of the number of processes, in bytes."""

    weights: Mapping[str, int]  # by part
    block: int  # weights of the largest block, skills included
    apart: int  # weights outside blocks
    trained: int  # trained weights
    block_trained: int  # trained weights of the largest block
    optimizer: int
    training: Mapping[str, int]  # other memory of a step, by kind
    answering: Mapping[str, int]
    # By group size: bytes and entries of the linear layers that can be quantised.
    linear: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    largest: int = 0  # weight bytes of the largest linear layer

    def plan(
        self, strategy: str, n_processes: int, quantize: Quantisation | None = None
    ) -> MemoryPlan:
        """Return the memory plan of each process.

        ``"fsdp2"`` shards weights, gradients and optimizer state. With ``quantize``, one linear
        layer at a time is dequantised.
        """
        steady = {**self.weights, "optimizer": self.optimizer}
        if quantize is not None:
            n_bytes, n_entries = self.linear[GROUPS[quantize]]
            full = next(part for part in steady if part.startswith("backbone"))
            steady[full] -= n_bytes
            steady[f"backbone ({quantize})"] = int(n_entries * BYTES_OF[quantize])
            steady["one dequantised layer"] = self.largest
        own = Counter(self.training)
        kept_gradients = self.trained
        if strategy == "fsdp2" and n_processes > 1:
            steady = {part: -(-size // n_processes) for part, size in steady.items()}
            if quantize is not None:  # both are unsharded
                steady["one dequantised layer"] = self.largest
                scales = 4 * self.linear[GROUPS[quantize]][1] // GROUPS[quantize]
                steady["scales of other shards"] = scales - scales // n_processes
            whole = self.apart + 2 * self.block  # the current one, and the prefetched next one
            steady["gathered blocks"] = whole - whole // n_processes
            kept_gradients = -(-self.trained // n_processes)
            own[GRADIENTS] = own[GRADIENTS] // n_processes + self.block_trained
        elif n_processes > 1:
            steady["gradient buckets"] = self.trained
        step = {**steady, **own}
        after = {**steady, GRADIENTS: kept_gradients}  # during the optimizer step
        answering = {**after, **self.answering}
        return MemoryPlan(max(step, after, key=lambda parts: sum(parts.values())), answering)


def needs_of(
    config: Config, tasks: Sequence[str], heads: Mapping[str, HeadForm] | None = None
) -> Needs:
    """Return the memory needs of a run, from its configuration and architecture."""
    try:
        model = fake_model(config, tasks, heads)
        training = training_bytes(model, config)
        answering = generation_bytes(model, config)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigError(
            f"the memory of this configuration depends on the data ({error}); use "
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


def fake_model(
    config: Config, tasks: Sequence[str], heads: Mapping[str, HeadForm] | None = None
) -> SkilledModel:
    """Return the model of a configuration in training mode, with fake weights.

    Only ``config.json`` of a pretrained backbone is read.
    """
    with torch.device("meta"):
        network = _network(config.backbone)
        choose_trained(network, config.backbone.train)
        model, *_ = assemble(network, config, tasks, trained=True)
        model.heads = build_heads(heads or {}, tasks, config.heads, network)
        if model.heads is not None:
            freeze_unread(network)
    freeze_skills(model, config)
    dtype = WHOLE.get(config.trainer.precision)
    if dtype is not None:
        model.to(dtype)
    _replace_tensors(model)
    for module in model.modules():
        if isinstance(module, SparseInventory):
            # Sparse products have data-dependent shapes; dense changes need at least as much
            # memory.
            module.sparse_products, module.mix = False, module.mix.replace("outputs", "auto")
    if config.backbone.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    return model.train()


def _network(backbone: Backbone) -> PreTrainedModel:
    if shipped := SHIPPED.get(backbone.title):
        place = str(shipped_folder() / "configs" / "sizes" / shipped)
        backbone = backbone.model_copy(update={"name": place})
    kind, settings = architecture(backbone)
    if isinstance(backbone, RandomBackbone):
        return kind.from_config(settings)
    stored = getattr(settings, "dtype", None) or torch.float32
    dtype = stored if backbone.dtype == "auto" else getattr(torch, backbone.dtype)
    return kind.from_config(settings, dtype=dtype)


def _replace_tensors(model: nn.Module) -> None:
    """Replace meta tensors, whose kernels keep other tensors, by fake CPU tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copies: dict[int, Tensor] = {}  # tied weights stay tied

    def copy(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        if id(tensor) not in copies:
            with mode:
                copies[id(tensor)] = make(torch.empty(tensor.shape, dtype=tensor.dtype))
        return copies[id(tensor)]

    for module in model.modules():
        for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
            trained = value.requires_grad
            setattr(module, name, copy(value, lambda t, y=trained: nn.Parameter(t, y)))
        for name, value in module.named_buffers(recurse=False, remove_duplicate=False):
            setattr(module, name, copy(value, lambda t: t))


def optimizer_bytes(optim: Optim, parameter: Tensor) -> int:
    """Return the size of an optimizer's state for a parameter, in bytes."""
    n_entries = 2 * parameter.numel()
    if isinstance(optim, Adafactor):
        rows, columns = parameter.shape[:-1], (*parameter.shape[:-2], *parameter.shape[-1:])
        n_entries = parameter.numel()
        if parameter.ndim > 1:
            n_entries = torch.Size(rows).numel() + torch.Size(columns).numel()
    return n_entries * parameter.element_size()


def _in_few_bits(backbone: nn.Module, group: int) -> tuple[int, int]:
    """Return bytes and entries of the quantisable linear layers in blocks."""
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

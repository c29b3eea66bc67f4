"""Build a configuration's model with fake tensors: all shapes, but no data."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from mttl.assembly.build_backbone import architecture
from mttl.assembly.build_heads import build_heads
from mttl.assembly.model import assemble
from mttl.config.backbone_schema import Backbone, RandomBackbone
from mttl.config.schema import Config
from mttl.io.files import shipped_folder
from mttl.models.backbone import choose_trained, freeze_unread
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.sparse import SparseInventory
from mttl.tasks.head_form import HeadForm

# Hub models whose configuration is shipped in configs/sizes.
SHIPPED = {"facebook/bart-large": "bart_large"}
# Trainer precisions with other than single-precision weights.
WHOLE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}


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

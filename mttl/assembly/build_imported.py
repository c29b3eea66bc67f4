"""Build a model and a run folder from imported skills."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mttl.assembly.model import Built, build
from mttl.assembly.saved_settings import ModelSettings
from mttl.config.plugin_section import PartSection, make_section
from mttl.config.schema import Config
from mttl.config.skills_schema import AnySkills
from mttl.io.errors import CheckpointError, grouped, raised_as
from mttl.io.files import new_folder, write_text
from mttl.plugins.classes import SKILLS
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.inventory import Inventory
from mttl.skills.targets import linear_features
from mttl.skills.weights.lora import LoRAInventory
from mttl.training.report import write_routing


def build_imported(
    settings: Config | ModelSettings,
    layers: Mapping[str, tuple[Tensor, Tensor]],
    tasks: Sequence[str],
    *,
    logits: Mapping[str, Tensor] | None = None,
    experts: Mapping[str, Mapping[str, Tensor]] | None = None,
    activation: str | None = None,
) -> Built:
    """Put imported low-rank skills on a backbone; factors (K, I, r) and (K, O, r) by layer.

    ``experts`` has the tensors of `MoELayer` by block, if blocks have experts; ``activation`` is
    the one that they were trained with.

    The sections skills and router, or moe, must match the number, rank and layers of the skills.
    The polytropon router starts from the given logits (T, H, K) of every layer, or approximately
    from the private router's weights.
    """
    built = build(settings, tasks, check=lambda network: check_layers(network, layers))
    model = built.model
    skilled = {path: (layer, layer.inventory) for path, layer in model.skilled_layers().items()}
    own_activation = getattr(model.backbone.config, "hidden_act", None)
    if activation not in (None, own_activation):
        raise CheckpointError(
            f"act_fn ('{activation}') must be the activation of the backbone ('{own_activation}')"
        )
    with torch.no_grad():
        for path, (layer, inventory) in skilled.items():
            _fill(inventory, *layers[path])
            if isinstance(model.router, PolytroponRouter):
                # The probabilities round to 1 or 0 but still have a gradient.
                own = 20.0 * (2 * torch.eye(model.router.n_skills) - 1)[:, None]
                model.router.logits[layer.group] = own if logits is None else logits[path]
        for path, layer in model.token_layers().items():
            if experts is not None:
                with raised_as(CheckpointError, f"the experts do not fit '{path}'", RuntimeError):
                    layer.load_state_dict({**layer.state_dict(), **experts[path]})
                continue
            _fill(layer.experts, *layers[path])
            layer.read_members()
    model.eval()
    return built


def imported_skills(
    layers: Mapping[str, tuple[Tensor, Tensor]],
    *,
    mix: str,
    per_task: bool = False,
    n_heads: int = 1,
    **settings: Any,
) -> PartSection:
    """Return the section of imported skills."""
    n_skills, _, rank = next(iter(layers.values()))[0].shape
    sizes = {"n_skills": "per_task" if per_task else n_skills, "n_heads": n_heads, "rank": rank}
    return make_section(SKILLS, AnySkills, "lora", targets=[*layers], mix=mix, **sizes, **settings)


def _fill(inventory: Inventory, down: Tensor, up: Tensor) -> None:
    assert isinstance(inventory, LoRAInventory)
    inventory.down.copy_(down)
    inventory.up.copy_(up)


def save_imported(
    out: Path, imported: Built, settings: Mapping[str, Any], files: Mapping[str, str] | None = None
) -> None:
    """Write a run folder."""
    with new_folder(out) as temporary:
        imported.save_skills(temporary / "skills", settings)
        if groups := imported.attachment.groups:
            path = temporary / "plots" / "routing.npz"
            write_routing(path, imported.model.router, groups, imported.tasks)
        for name, text in (files or {}).items():
            write_text(temporary / name, text)


def check_layers(network: nn.Module, layers: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Raise a `CheckpointError` if a network lacks layers of the skills, or sizes differ."""
    modules = dict(network.named_modules())
    absent = [path for path in layers if path not in modules]
    other = [
        path
        for path, (down, up) in layers.items()
        if path in modules and linear_features(modules[path]) != (down.shape[1], up.shape[1])
    ]
    wrong = {"missing layers": absent, "not linear or of other sizes": other}
    if problems := grouped(wrong):
        raise CheckpointError(
            f"the skills do not fit the backbone: {'; '.join(problems)}. Name the model that they "
            "were trained on with --backbone"
        )

"""From skills that another tool trained to a model of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mttl.build.build_backbone import build_backbone, build_tokenizer
from mttl.build.model import assemble
from mttl.build.saved_settings import ModelSettings
from mttl.config.backbone_schema import Pretrained
from mttl.config.router_schema import Polytropon, Private
from mttl.config.skills_schema import LoRA
from mttl.errors import CheckpointError
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.attach import Attachment
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.targets import linear_features
from mttl.skills.weights.lora import LoRAInventory

# Probability 1 or 0 to the last bit of single precision, yet with a gradient left.
CERTAIN = 20.0


@dataclass(frozen=True)
class Imported:
    """Skills on their backbone, with what is needed to build the same model again.

    Attributes:
        model: Backbone, skills and router.
        attachment: Which layers have skills.
        tasks: Names of the tasks in the order of their ids.
        settings: The sections backbone, skills and router.
    """

    model: SkilledModel
    attachment: Attachment
    tasks: tuple[str, ...]
    settings: dict[str, dict]


def build_imported(
    backbone: Pretrained,
    layers: Mapping[str, tuple[Tensor, Tensor]],
    tasks: Sequence[str],
    *,
    scale: float,
    mix: str,
    router: str,
    logits: Mapping[str, Tensor] | None = None,
) -> Imported:
    """Put imported low-rank skills on a backbone, with a router that has a row per task.

    Args:
        backbone: The model that they were trained on.
        layers: Stacked factors (K, I, r) and (K, O, r) by path of the layer.
        tasks: Names of the tasks.
        scale: Factor on the change.
        mix: How skills combine.
        router: ``"private"``: task t uses skill t alone. ``"polytropon"``: a router that can be
            trained, with the given logits, or, to rounding, with those of the private one.
        logits: Of every layer, (T, H, K).

    Raises:
        ConfigError: If the backbone cannot be loaded.
        CheckpointError: If layers do not fit it; they are listed.
    """
    n_skills, _, rank = next(iter(layers.values()))[0].shape
    n_heads = 1 if logits is None else next(iter(logits.values())).shape[1]
    private = router == "private"
    skills = LoRA(
        kind="lora",
        n_skills="per_task" if private else n_skills,
        n_heads=n_heads,
        targets=list(layers),
        rank=rank,
        scale=scale,
        mix=mix,  # type: ignore[arg-type]
    )
    router_section = Private(kind="private") if private else Polytropon(kind="polytropon")
    settings = ModelSettings(backbone=backbone, skills=skills, router=router_section)
    build_tokenizer(backbone)  # a run needs one, so it is better missed now
    network = build_backbone(backbone)
    check_layers(network, layers)
    model, attachment, _ = assemble(network, settings, tasks)
    with torch.no_grad():
        for path, layer in model.skilled_layers().items():
            down, up = layers[path]
            inventory = layer.inventory
            assert isinstance(inventory, LoRAInventory)
            inventory.down.copy_(down)
            inventory.up.copy_(up)
            if isinstance(model.router, PolytroponRouter):
                own = CERTAIN * (2 * torch.eye(n_skills) - 1)[:, None]
                rows = own if logits is None else logits[path]
                model.router.logits[layer.group] = rows
    sections = settings.model_dump(mode="json", include={"backbone", "skills", "router"})
    return Imported(model.eval(), attachment, tuple(tasks), sections)


def sizes_of(down: Tensor, up: Tensor) -> tuple[int, int]:
    """Return the features in and out of stacked factors."""
    return down.shape[1], up.shape[1]


def check_layers(network: nn.Module, layers: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Refuse skills of layers that a network lacks, or of another size.

    Args:
        network: The backbone.
        layers: Stacked factors by path.

    Raises:
        CheckpointError: If there are such; they are listed.
    """
    modules = dict(network.named_modules())
    absent = [path for path in layers if path not in modules]
    present = [path for path in layers if path in modules]
    other = [path for path in present if linear_features(modules[path]) != sizes_of(*layers[path])]
    for cause, paths in (("are missing", absent), ("are not linear or of other sizes", other)):
        if paths:
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            raise CheckpointError(
                f"the skills do not fit the backbone, in which these layers {cause}: "
                f"{', '.join(paths[:5])}{more}. Name the model that they were trained on "
                "(--backbone)"
            )

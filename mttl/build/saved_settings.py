"""The settings in a saved inventory: what is needed to build its model again."""

from typing import TypeVar

from pydantic import ValidationError

from mttl.build.build_backbone import found_again
from mttl.checkpoint import SavedInventory
from mttl.config.backbone_schema import Backbone
from mttl.config.moe_schema import MoE
from mttl.config.router_schema import Router
from mttl.config.schema import Generation
from mttl.config.section import Section
from mttl.config.skills_schema import Aggregation, Mixture, Skills
from mttl.data.prompt_form import PromptForm
from mttl.errors import CheckpointError
from mttl.own_classes import OwnClassError

S = TypeVar("S", bound=Section)


class ModelSettings(Section):
    """What a language model with skills is built from."""

    backbone: Backbone
    """The language model."""
    skills: Skills
    """The inventory."""
    router: Router
    """Who uses which skills."""
    moe: MoE | None = None
    """Experts that tokens choose."""
    aggregation: Aggregation = Mixture()
    """How the chosen skills combine."""
    data: PromptForm = PromptForm()
    """How rows became text in training."""
    generation: Generation = Generation()
    """How answers were searched in evaluation."""
    precision: str = "32-true"
    """Of the arithmetic in training and evaluation."""


def read_found_settings(saved: SavedInventory) -> ModelSettings:
    """Return the settings of a saved model, with the backbone's folders where they are now.

    Raises:
        CheckpointError: If they do not validate.
    """
    settings = read_settings(saved, ModelSettings)
    places = saved.meta["backbone"].get("places", {})
    found = found_again(settings.backbone, places, saved.folder.parent)
    return settings.model_copy(update={"backbone": found})


def read_settings(saved: SavedInventory, schema: type[S]) -> S:
    """Return the validated settings of a saved inventory.

    Raises:
        CheckpointError: If they do not validate.
    """
    try:
        return schema.model_validate(saved.meta["settings"])
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            cause = mistake.get("ctx", {}).get("error")
            if isinstance(cause, OwnClassError):
                raise CheckpointError(f"'{saved.folder / 'meta.json'}': {cause}") from error
        raise CheckpointError(
            f"'{saved.folder / 'meta.json'}' has settings that this mttl does not know. Load it "
            f"with the mttl that wrote it ({saved.meta['libraries']['mttl']}): {error}"
        ) from error

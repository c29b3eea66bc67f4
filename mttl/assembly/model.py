"""From a validated configuration to objects."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.rank_zero import rank_zero_only
from transformers import PreTrainedModel

from mttl.assembly.attachment_probe import AttachmentProbe
from mttl.assembly.build_backbone import (
    build_backbone,
    build_tokenizer,
    check_backbone,
    check_vocabulary,
)
from mttl.assembly.build_moe import build_experts
from mttl.assembly.build_router import build_router, count_skills
from mttl.assembly.fusion_source import load_source
from mttl.assembly.saved_run import SavedRun
from mttl.assembly.saved_settings import ModelSettings, read_found_settings
from mttl.checkpoints.model_hub import download
from mttl.checkpoints.saved_inventory import load_into, read_inventory
from mttl.config.moe_schema import MEMBERS
from mttl.config.plugin_section import PluginSection
from mttl.config.schema import Config
from mttl.config.skills_schema import Aggregation, Skills, kinds_of
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import CheckpointError, ConfigError
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import end_also_at, not_applied, search_settings
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing.context import RoutingSlot
from mttl.skills.attach import Attachment, Placement, attach_kinds
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import KINDS
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.sparse import place_supports, saved_supports
from mttl.sparse.skill_file import SparseSkill
from mttl.training.precision import answering_precision

_log = logging.getLogger(__name__)

# Settings of every section `skills` that are not arguments of its kind.
COMMON = {"kind", "targets", "n_skills", "support", "gate", "identical_init"}


@dataclass(frozen=True, kw_only=True)
class Built(SavedRun):
    """A model ready to train, or to answer.

    Attributes:
        attachment: Which layers have skills, and all routed groups.
        token_layers: Which layers route tokens, if any do.
    """

    attachment: Attachment
    token_layers: Attachment | None = None


def build_model(config: Config, tasks: Sequence[str]) -> Built:
    """Build backbone, skills and router for some tasks, in training mode.

    The backbone's dropout is on also where its weights are frozen, as in fine-tuning.

    Raises:
        ConfigError: If a part cannot be built, or learns nothing; the message names the section.
        CheckpointError: If the skills of an earlier run cannot be loaded, or do not fit.
    """
    _refuse_members(config)
    # Where the model is sharded, the first process gives the others what they hold of it.
    empty = config.trainer.strategy == "fsdp2" and rank_zero_only.rank != 0
    built = _build(config, tasks, empty=empty)
    if not empty:
        load_source(built.model, config)
    built.model.train()
    return built


def load_run(
    folder: str | Path,
    *,
    run: str | Path | None = None,
    backbone: str | Path | None = None,
) -> Built:
    """Load the trained inventory of a run, or an adapted task, in evaluation mode.

    Args:
        folder: The run folder, or its ``skills/``; or the folder of an adapted task.
        run: Where the run is that a task was adapted from, if it was moved.
        backbone: Where a pretrained backbone is now, if not where it was in training.

    Raises:
        CheckpointError: If the folder holds no inventory of a language model, or it does not fit
            its backbone.
        ConfigError: If the backbone cannot be loaded, or one is named though the run has its own.
    """
    saved = read_inventory(folder, run)
    if "backbone" not in saved.meta["settings"]:
        raise CheckpointError(f"'{saved.folder}' holds policies, which have no language model")
    settings = read_found_settings(saved)
    if backbone is not None:
        if settings.backbone.kind == "random":
            raise ConfigError(f"'{saved.folder}' holds its own backbone: name no other")
        where = settings.backbone.model_copy(update={"name": str(backbone)})
        settings = settings.model_copy(update={"backbone": where})
    built = _build(settings, saved.tasks, trained=True)
    if settings.skills.kind == "sparse":  # supports may differ in size from those drawn
        place_supports(built.model.skilled_layers(), saved_supports(saved.skills))
    load_into(built.model, saved)
    built.model.eval()
    found = {"folder": saved.folder, "meta": saved.meta, "backbone": settings.backbone}
    return replace(built, **found, precision=answering_precision(settings.precision, built.model))


def from_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    backbone: str | Path | None = None,
) -> Built:
    """Load what `Built.save_pretrained` or `push_to_hub` wrote, or any run.

    Args:
        name: A folder, or ``"OWNER/NAME"`` on the model hub.
        revision: Branch, tag or commit on the hub.
        token: For a private one; by default that of `hf auth login`.
        backbone: As for `load_run`.

    Raises:
        ConfigError: If the folder does not exist, and the hub has no such repository.
        CheckpointError: As for `load_run`.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = download(str(name), "a run", revision=revision, token=token)
    return load_run(folder, backbone=backbone)


def inventory_settings(
    config: Config,
    descriptions: Mapping[str, str | None] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return what a saved inventory needs to be built again and to answer, as JSON."""
    names = [name for name in ModelSettings.model_fields if name not in ("data", "precision")]
    sections = config.model_dump(mode="json", include=set(names))
    own: dict[str, Any] = {name: sections[name] for name in names} | {
        "precision": config.trainer.precision
    }
    if own["moe"] is not None:
        del own["moe"]["parallel"]  # of the training, not of the model
    form = config.data.model_dump(mode="json", include=set(PromptForm.model_fields))
    by_task = {"task_descriptions": descriptions, "task_options": options}
    return own | {"data": form | {name: texts for name, texts in by_task.items() if texts}}


def _refuse_members(config: Config) -> None:
    """Refuse to train with a router of a library's members."""
    found, other = f"router.kind '{config.router.kind}'", "smear"
    if config.moe is not None and config.moe.router.kind in MEMBERS:
        found, other = f"moe.router.kind '{config.moe.router.kind}'", "top_k"
    elif config.router.kind != "retrieval":
        return
    raise ConfigError(
        f"{found} routes among members of a library, which exist already. Make a run of one with "
        f"`mttl library run`, or train skills with another router, such as {other}"
    )


def _build(
    settings: Config | ModelSettings,
    tasks: Sequence[str],
    *,
    trained: bool = False,
    empty: bool = False,
) -> Built:
    backbone = settings.backbone
    check_backbone(backbone)
    tokenizer = build_tokenizer(backbone)
    network = build_backbone(backbone, empty=empty)
    check_vocabulary(backbone, tokenizer, network)
    form = settings.data if isinstance(settings, ModelSettings) else PromptForm.of(settings.data)
    own = network.generation_config
    if form.template == "chat":
        encoder = form.encoder(tokenizer, decoder_only=is_decoder_only(network))
        assert own is not None
        end_also_at(own, encoder.stops)
    if ignored := not_applied(settings.generation, own):
        values = ", ".join(f"{name} {getattr(own, name)}" for name in sorted(ignored))
        _log.info("not applied of the backbone's generation settings: %s", values)
    model, attachment, token_layers = assemble(network, settings, tasks, trained=trained)
    if backbone.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    if backbone.compile:
        model.backbone.compile()
    return Built(
        model=model,
        tokenizer=tokenizer,
        tasks=tuple(tasks),
        form=form,
        search=search_settings(settings.generation, form.max_output_length, own),
        per_token=settings.generation.per_token,
        attachment=attachment,
        token_layers=token_layers,
    )


def assemble(
    network: PreTrainedModel,
    settings: Config | ModelSettings,
    tasks: Sequence[str],
    *,
    trained: bool = False,
) -> tuple[SkilledModel, Attachment, Attachment | None]:
    """Put skills, experts and their routers on a language model: the one place that does.

    Returns:
        The model, which layers have skills and all routed groups, and which layers route tokens.

    Raises:
        ConfigError: If a part does not fit; the message names the section.
    """
    skills, router, moe = settings.skills, settings.router, settings.moe
    slot = RoutingSlot()
    attachment, n_heads, n_skills = Attachment((), ()), 1, 1
    if skills.kind != "none":
        n_heads = skills.n_heads
        n_skills = count_skills(skills.n_skills, router, len(tasks))
        aggregation = settings.aggregation
        attachment = _attach(
            network,
            *(skills, aggregation, slot, n_skills, router.granularity),
            fresh=not trained,
        )
    token_layers = None
    if moe is not None:
        if skills.kind == "none" and moe.task_prior != "none":
            n_skills = moe.n_experts
        token_layers = build_experts(
            network, moe, slot=slot, granularity=router.granularity, groups=attachment.groups
        )
        attachment = replace(attachment, groups=token_layers.groups)
    try:
        n_groups = len(attachment.groups)
        embeddings: Any = network.get_input_embeddings()
        task_router = build_router(
            *(router, n_groups, tasks, n_heads, n_skills),
            trained=trained,
            n_features=int(embeddings.weight.shape[1]),
        )
        model = SkilledModel(network, task_router, slot)
    except ValueError as error:
        raise ConfigError(f"section router: {error}") from error
    if skills.kind == "sparse" and skills.support != "random" and not trained:
        try:
            skill = SparseSkill.load(skills.support)
            if skill.masks:
                raise ValueError(
                    "it is of a pruned network (form masked), which changes every entry and has no "
                    "support to take over; make it with --form added, or use support: random"
                )
            place_supports(model.skilled_layers(), skill.support)
        except ValueError as error:
            raise ConfigError(f"skills.support ('{skills.support}'): {error}") from error
    return model, attachment, token_layers


def _attach(
    model: PreTrainedModel,
    skills: Skills,
    aggregation: Aggregation,
    slot: RoutingSlot,
    n_skills: int,
    granularity: str,
    *,
    fresh: bool,
) -> Attachment:
    placements, sections = [], list(kinds_of(skills))
    probe = AttachmentProbe(model) if fresh else None
    for one in sections:
        make = partial(_make_inventory, one, aggregation, n_skills)
        placements.append(Placement(make, one.targets, one.part_class.attachment_point))
    try:
        found = attach_kinds(model, placements, slot=slot, granularity=granularity, fresh=fresh)
    except ValueError as error:
        raise ConfigError(f"section skills: {error}") from error
    if any(placement.attachment_point == "attention" for placement in placements):
        read_prefixes(model)
    if probe is not None:
        kinds = ", ".join(one.kind for one in sections)
        promised = not any(isinstance(one, PluginSection) for one in sections)
        probe.check(slot, kinds, promised)
    return found


def _make_inventory(
    skills: Any,
    aggregation: Aggregation,
    n_skills: int,
    in_features: int,
    out_features: int,
    *more: int,
) -> Inventory:
    n_heads, gate, identical = skills.n_heads, skills.gate, skills.identical_init
    if isinstance(skills, PluginSection):
        sizes = {"in_features": in_features, "out_features": out_features}
        made = skills.make(**sizes, n_skills=n_skills, n_heads=n_heads)
        made.require_use("task")
    else:
        settings = skills.model_dump(exclude=COMMON)
        made = KINDS[skills.kind](in_features, out_features, n_skills, *more, **settings)
        if aggregation.kind == "fusion":
            attention = aggregation.model_dump(exclude={"kind", "source"})
            return AttendedInventory(made, **attention)
    found = GatedInventory(made) if gate else made
    if identical:
        found.make_identical()
    return found

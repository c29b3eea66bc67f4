"""Build and load models from configurations and runs."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from mttl.aggregation.packed_weights import dense_weight
from mttl.assembly.attachment_probe import AttachmentProbe
from mttl.assembly.build_backbone import build_backbone, build_tokenizer, check_vocabulary
from mttl.assembly.build_heads import build_heads
from mttl.assembly.build_moe import build_experts
from mttl.assembly.build_router import build_level, build_router, count_skills, skill_sizes
from mttl.assembly.other_runs import OtherSkills, open_others, with_digests
from mttl.assembly.saved_run import Built
from mttl.assembly.saved_settings import ModelSettings, read_found_settings, read_settings
from mttl.checkpoints.model_hub import download
from mttl.checkpoints.model_tensors import backbone_parameters
from mttl.checkpoints.run_folder import differences
from mttl.checkpoints.saved_inventory import copy_saved, load_into, load_skills, read_inventory
from mttl.config.backbone_schema import RandomBackbone
from mttl.config.capabilities import require_features
from mttl.config.load import with_settings
from mttl.config.plugin_section import PluginSection
from mttl.config.schema import Config
from mttl.config.skills_schema import Fusion, kinds_of
from mttl.data.prompt_form import PromptForm
from mttl.inference.predictor import MIXED
from mttl.io.errors import CheckpointError, ConfigError, raised_as
from mttl.io.record import as_row
from mttl.models.backbone import freeze_unread, is_decoder_only
from mttl.models.generation import end_also_at, not_applied, search_settings
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing.context import RoutingSlot
from mttl.runtime.libraries import quiet_loading
from mttl.runtime.processes import is_first_process
from mttl.skills.attach import Attachment, attach_levels
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.sparse import place_supports, restore_supports
from mttl.sparse.skill_file import SparseSkill
from mttl.tasks.head_form import HeadForm
from mttl.tasks.record_template import RecordTemplate

_log = logging.getLogger(__name__)
# Settings that do not affect the computation.
FREE = {"train", "gradient_checkpointing", "compile", "dtype"}


def build_model(
    config: Config, tasks: Sequence[str], heads: Mapping[str, HeadForm] | None = None
) -> Built:
    """Build the backbone, skills, router and heads for some tasks, in training mode.

    The dropout of a frozen backbone is active, as in fine-tuning. Raises a `ConfigError` if a part
    cannot be built or nothing is trained, and a `CheckpointError` if the skills of an earlier run
    cannot be loaded or do not fit.
    """
    require_features(config, {"trains": "training"}, ConfigError)
    # With a sharded model, the first process sends its weights to the others.
    empty = config.trainer.strategy == "fsdp2" and not is_first_process()
    built = build(config, tasks, empty=empty, heads=heads)
    if not empty:
        load_source(built.model, config, tasks)
        for other in built.others:
            other.require_base(built.model.backbone)
    freeze_skills(built.model, config)
    built.model.train()
    return built


def freeze_skills(model: SkilledModel, config: Config) -> None:
    """Freeze the skills if a configuration says so (``run.freeze_skills``)."""
    for layer in model.skilled_layers().values() if config.run.freeze_skills else ():
        layer.inventory.requires_grad_(False)


def load_source(model: SkilledModel, config: Config, tasks: Sequence[str]) -> None:
    """Load skills and backbone of the run that a configuration starts from, if any.

    ``run.start_router`` also loads its router. Raises a `CheckpointError` if the run's sections
    backbone and skills differ from the configuration's. It also compares ``data.prefix`` for
    fusion, and the section and tasks of a loaded router.
    """
    fusion = config.aggregation if isinstance(config.aggregation, Fusion) else None
    name, source = "run.start", config.run.start
    if fusion is not None:
        name, source = "aggregation.source", fusion.source
    if source is None:
        return
    saved = read_inventory(source)
    built_from = read_settings(saved, ModelSettings)
    if isinstance(built_from.aggregation, Fusion):
        raise CheckpointError(f"{name} '{source}' is a fusion; name the run whose skills it fused")
    compared = {"backbone", "skills"} | ({"router"} if config.run.start_router else set())
    theirs, ours = (
        one.model_dump(mode="json", include=compared, exclude={"backbone": FREE})
        for one in (built_from, config)
    )
    if config.run.start_router:
        theirs["tasks"], ours["tasks"] = list(saved.tasks), list(tasks)
    if "n_skills" in theirs["skills"]:
        theirs["skills"]["n_skills"] = count_skills(
            theirs["skills"]["n_skills"], built_from.router, len(saved.tasks)
        )
        ours["skills"]["n_skills"] = model.router.n_skills
        if theirs["skills"]["n_skills"] != model.router.n_skills:  # a cause is the kind of router
            theirs.setdefault("router", {"kind": built_from.router.kind})
            ours.setdefault("router", {"kind": config.router.kind})
    if fusion is not None:  # frozen skills need the same form of inputs
        theirs["data"] = {"prefix": built_from.data.prefix}
        ours["data"] = {"prefix": config.data.prefix}
    if differing := [line for _, line in differences(theirs, ours, "{} there, {} here")]:
        more = "" if config.run.start_router else ", with +router/NAME.yaml of as many skills"
        more = "+aggregation/fusion.yaml" if fusion else more
        listed = "\n".join(differing)
        raise CheckpointError(
            f"the configuration differs from that of {name} '{source}':\n{listed}\n"
            f"Use its own configuration: -c {source}/config.yaml{more}"
        )
    if built_from.data.prefix != config.data.prefix:  # an error above for a fusion
        _log.warning(
            "the skills of %s '%s' were trained with data.prefix=%s, and training continues with "
            "%s; use -k data.prefix=%s for the same inputs",
            *(name, source, built_from.data.prefix, config.data.prefix, built_from.data.prefix),
        )
    restore_supports(model.skilled_layers(), saved.skills)
    (load_into if config.run.start_router else load_skills)(model, saved)


def load_run(
    folder: str | Path,
    *,
    run: str | Path | None = None,
    backbone: str | Path | None = None,
    on: Iterable[str | Mapping[str, Any]] | None = None,
) -> Built:
    """Return the trained model of a run, or of an adapted task, in evaluation mode.

    Args:
        folder: Run folder, its ``skills/``, or the folder of an adapted task.
        run: Current folder of the run that a task was adapted from, if it was moved.
        backbone: Current folder of the pretrained backbone, if it was moved.
        on: Entries of `skills.on` instead of those of training, such as another language:
            ``["runs/languages:es"]``.

    Raises:
        CheckpointError: If the folder has no inventory of a language model, or it or that of
            another run does not fit its backbone.
        ConfigError: If the backbone cannot be loaded, or is given although the run includes it, or
            other runs do not work with the settings.
    """
    saved = read_inventory(folder, run)
    settings = read_found_settings(saved)
    if backbone is not None:
        if isinstance(settings.backbone, RandomBackbone):
            raise ConfigError(f"'{saved.folder}' includes its backbone; name no other backbone")
        where = settings.backbone.model_copy(update={"name": str(backbone)})
        settings = settings.model_copy(update={"backbone": where})
    if on is not None:
        settings = with_digests(with_settings(settings, {"skills.on": [*on]}))
        require_features(settings, None, ConfigError)
    with quiet_loading():
        built = build(settings, saved.tasks, trained=True)
    restore_supports(built.model.skilled_layers(), saved.skills)
    load_into(built.model, saved)
    for other in built.others:
        other.require_base(built.model.backbone)
    built.model.eval()
    meta = saved.meta
    if on is not None:
        now = settings.model_dump(mode="json", include={"skills"})
        meta = meta | {"settings": meta["settings"] | now}
    return replace(built, folder=saved.folder, meta=meta, mixed=MIXED.get(settings.precision))


def from_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    backbone: str | Path | None = None,
) -> Built:
    """Return a model saved by `Built.save_pretrained` or `push_to_hub`, or any run.

    Args:
        name: A folder, or ``"OWNER/NAME"`` on the model hub.
        revision: Branch, tag or commit on the hub.
        token: Token for a private repository; by default that of `hf auth login`.
        backbone: Backbone folder, as for `load_run`.

    Raises:
        ConfigError: If neither the folder nor the repository exists.
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
    templates: Mapping[str, RecordTemplate | None] | None = None,
    heads: Mapping[str, HeadForm] | None = None,
) -> dict[str, Any]:
    """Return the settings that a saved inventory needs to rebuild its model, as JSON."""
    names = [name for name in ModelSettings.model_fields if name not in ("data", "precision")]
    sections = config.model_dump(mode="json", include=set(names))
    own: dict[str, Any] = {name: sections[name] for name in names}
    own["precision"] = config.trainer.precision
    if own["moe"] is not None:
        del own["moe"]["parallel"]  # a training setting
    form = config.data.model_dump(mode="json", include=set(PromptForm.model_fields))
    named = {task: own for task, own in (options or {}).items() if own}
    by_task: dict[str, Any] = {"task_descriptions": descriptions, "task_options": named}
    kept = {task: as_row(one) for task, one in (templates or {}).items() if one}
    by_task["task_templates"] = kept
    by_task["task_heads"] = {task: as_row(head) for task, head in (heads or {}).items()}
    return own | {"data": form | {name: texts for name, texts in by_task.items() if texts}}


def build(
    settings: Config | ModelSettings,
    tasks: Sequence[str],
    *,
    trained: bool = False,
    empty: bool = False,
    heads: Mapping[str, HeadForm] | None = None,
    check: Callable[[PreTrainedModel], None] = lambda network: None,
) -> Built:
    """Build a model ready for answering; ``check`` receives the bare backbone."""
    backbone = settings.backbone
    tokenizer = build_tokenizer(backbone)
    network = build_backbone(backbone, empty=empty)
    check_vocabulary(backbone, tokenizer, network)
    check(network)
    form = settings.data if isinstance(settings, ModelSettings) else PromptForm.of(settings.data)
    form = form.model_copy(update={"task_heads": heads}) if heads else form
    own = getattr(network, "generation_config", None)  # encoders have none
    if form.template == "chat":
        encoder = form.encoder(tokenizer, decoder_only=is_decoder_only(network))
        assert own is not None
        end_also_at(own, encoder.stops)
    if ignored := not_applied(settings.generation, own):
        values = ", ".join(f"{name} {getattr(own, name)}" for name in sorted(ignored))
        _log.info("generation settings of the backbone that are not applied: %s", values)
    model, attachment, token_layers, others = assemble(network, settings, tasks, trained=trained)
    model.heads = build_heads(form.task_heads, tasks, settings.heads, network)
    if model.heads is not None:
        freeze_unread(network)
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
        backbone=backbone,
        attachment=attachment,
        token_layers=token_layers,
        others=tuple(others),
    )


def assemble(
    network: PreTrainedModel,
    settings: Config | ModelSettings,
    tasks: Sequence[str],
    *,
    trained: bool = False,
) -> tuple[SkilledModel, Attachment, Attachment | None, list[OtherSkills]]:
    """Attach skills, experts and routers to a language model, on top of skills of other runs.

    Also returns the layers with skills and all routed groups, the layers that route tokens, and
    the skills of other runs.
    """
    router, moe, slot = settings.router, settings.moe, RoutingSlot()
    others = open_others(settings)
    attachment, token_layers = Attachment((), ()), None
    n_heads, n_skills = skill_sizes(settings, len(tasks))
    if kinds_of(settings.skills):
        attachment = _attach(network, settings, len(tasks), slot, others, fresh=not trained)
    if moe is not None:
        token_layers = build_experts(
            network, moe, slot=slot, granularity=router.granularity, groups=attachment.groups
        )
        attachment = replace(attachment, groups=token_layers.groups)
    with raised_as(ConfigError, f"section router ({router.kind})", ValueError):
        embeddings: Any = network.get_input_embeddings()
        task_router = build_router(
            *(router, len(attachment.groups), tasks, n_heads, n_skills),
            trained=trained,
            n_features=int(embeddings.weight.shape[1]),
        )
        model = SkilledModel(network, task_router, slot)
    support = getattr(settings.skills, "support", "random")
    if support != "random" and not trained:
        with raised_as(ConfigError, f"skills.support ('{support}')", ValueError):
            skill, layers = SparseSkill.load(support), model.skilled_layers()
            entries = skill.support
            if skill.masks:
                bases = {f"{path}.weight": layer.base for path, layer in layers.items()}
                entries = skill.kept({name: dense_weight(base) for name, base in bases.items()})
            place_supports(layers, entries, masked=skill.masks)
    return model, attachment, token_layers, others


def _attach(
    network: PreTrainedModel,
    settings: Config | ModelSettings,
    n_tasks: int,
    slot: RoutingSlot,
    others: Sequence[OtherSkills],
    *,
    fresh: bool,
) -> Attachment:
    if others and others[0].saved.backbone is not None:
        copy_saved(others[0].saved, {"backbone": backbone_parameters(network)})
    probe, kinds = AttachmentProbe(network) if fresh else None, kinds_of(settings.skills)
    own = build_level(settings, n_tasks, slot, fresh=fresh)
    levels = [*(other.level for other in others), own]
    with raised_as(ConfigError, "section skills", ValueError):
        *below, found = attach_levels(network, levels)
    placements = [placement for one in levels for placement in one.placements]
    if any(placement.attachment_point == "attention" for placement in placements):
        read_prefixes(network)
    n_features = int(network.get_input_embeddings().weight.shape[1])  # type: ignore[union-attr]
    for other, attached in zip(others, below, strict=True):
        other.route(attached, n_features)
    if probe is not None:  # the skills of other runs are still untrained, and change nothing
        promised = not any(isinstance(one, PluginSection) for one in kinds)
        probe.check(slot, ", ".join(one.kind for one in kinds), promised)
    for other in others:
        other.load(network)
    return found

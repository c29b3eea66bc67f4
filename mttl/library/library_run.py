"""Runs whose skills or experts are members of a library."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import Field
from torch import Tensor

from mttl.assembly.build_imported import build_imported, imported_skills, save_imported
from mttl.assembly.model import Built, inventory_settings
from mttl.checkpoints.model_tensors import fingerprint, own_parameters
from mttl.config.backbone_schema import Pretrained
from mttl.config.capabilities import require_features
from mttl.config.load import dump_config
from mttl.config.moe_schema import LoRAExperts, MoE
from mttl.config.schema import Config
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.record import Record
from mttl.library.library_folder import Library
from mttl.library.member_card import MemberCard
from mttl.library.stacking import stack_members, without_general
from mttl.merging.recipe import validated

# Task routers that need no training.
ROUTERS = ("private", "polytropon", "average", "expert", "retrieval")
MEMBERS = "members.json"


class MemberList(Record):
    """The content of ``members.json``: the library and the members of a run."""

    library: str
    version: int
    members: list[MemberCard]
    general: list[str] = Field(default_factory=list)


def make_run(
    library: Library,
    names: Sequence[str],
    config: Config,
    out: Path,
    *,
    mix: str = "outputs",
    descriptions: Mapping[str, str | None] | None = None,
    general: Sequence[str] = (),
    prepare: Callable[[Config, Built], object] = lambda config, made: None,
) -> tuple[Config, Built]:
    """Write a run whose skills or experts are members of a library, and return it.

    The sections skills and moe of the configuration get number, rank and layers of the members.
    ``mix`` is ``skills.mix``. ``general`` names members whose mean is subtracted from the others,
    and ``prepare`` is called with configuration and model before the run is written.

    Raises `ConfigError` if a section does not fit the members, or two members have one task.
    """
    members = [library.member(name) for name in names]
    owners: dict[str, str] = {}
    for member in members:
        task, name = member.card.task, member.card.name
        if owners.setdefault(task, name) != name:
            raise ConfigError(
                f"'{owners[task]}' and '{name}' both have the task '{task}'; choose one (--members)"
            )
    changes = [member.changes for member in members]
    if general:
        common = {name: library.member(name).changes for name in general}
        changes = without_general(dict(zip(names, changes, strict=True)), common)
    layers = stack_members(changes)
    config = with_members(config, layers, mix=mix)
    imported = build_imported(config, layers, list(owners))
    backbone = config.backbone
    assert isinstance(backbone, Pretrained)
    if backbone.quantize is None:  # quantised weights have another fingerprint
        found = fingerprint(own_parameters(imported.model), values=True)
        if found != library.base.fingerprint:
            raise CheckpointError(
                f"the base model of the library '{library.folder}' is '{library.base.name}' "
                f"(fingerprint {library.base.fingerprint[:12]}), not '{backbone.name}' "
                f"({found[:12]}). Set the model of its members (-k backbone.name=...)"
            )
    prepare(config, imported)
    facts = MemberList(
        library=str(library.folder.resolve()),
        version=library.version,
        members=[member.card for member in members],
        general=list(general),
    )
    files = {"config.yaml": dump_config(config), MEMBERS: facts.text()}
    options = {member.card.task: member.card.options for member in members}
    templates = {member.card.task: member.card.template for member in members}
    own = inventory_settings(config, descriptions, options, templates)
    save_imported(out, imported, own, files)
    return config, imported


def with_members(
    config: Config, layers: Mapping[str, tuple[Tensor, Tensor]], *, mix: str
) -> Config:
    """Return a configuration with number, rank and layers of skills or experts of the members."""
    router, moe = config.router.kind, config.moe
    if config.backbone.kind != "pretrained" or config.backbone.train:
        raise ConfigError("members of a library need backbone.kind: pretrained, and train: false")
    require_features(config, {"stands_alone": "a library"}, ConfigError)
    if config.aggregation.kind != "mixture":
        raise ConfigError(
            f"aggregation.kind '{config.aggregation.kind}' needs training with the skills of a "
            "run: make the run first, then set it as aggregation.source of a training"
        )
    if moe is None:
        if router not in ROUTERS:
            raise ConfigError(
                f"router.kind '{router}' needs training with the members: start it from a run with "
                f"router.kind average (run.start, run.freeze_skills), use {', '.join(ROUTERS)}, or "
                "a section moe, whose tokens choose among members"
            )
        per_task = router in ("private", "retrieval")
        skills = imported_skills(layers, mix=mix, per_task=per_task, scale=1.0)
        return config.model_copy(update={"skills": skills})
    if config.skills.kind != "none":
        raise ConfigError(
            "with a section moe, members are experts of tokens: set skills.kind: none"
        )
    if getattr(moe.experts, "shared_down", True) or moe.every != 1 or moe.stacks is not None:
        raise ConfigError(
            "members are low-rank and have their own layers: set moe.experts.kind: lora, and leave "
            "out its shared_down, moe.every and moe.stacks"
        )
    n_members, _, rank = next(iter(layers.values()))[0].shape
    experts = LoRAExperts(kind="lora", rank=rank, scale=1.0)
    update = {"experts": experts, "n_experts": n_members, "targets": list(layers)}
    moe = validated(MoE, {**dict(moe), **update}, f"section moe, with {n_members} members")
    return config.model_copy(update={"moe": moe})

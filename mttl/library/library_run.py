"""Members of a library as the skills, or the experts, of a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError
from torch import Tensor

from mttl.assembly.build_imported import build_imported, imported_skills, save_imported
from mttl.assembly.model import Built, inventory_settings
from mttl.checkpoints.model_tensors import fingerprint, own_parameters
from mttl.config.backbone_schema import Pretrained
from mttl.config.load import dump_config
from mttl.config.moe_schema import LoRAExperts, MoE
from mttl.config.schema import Config
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.record import Record
from mttl.library.library_folder import Library, Member
from mttl.library.member_card import MemberCard
from mttl.library.stacking import stack_members, without_general

# Task routers that need no training: what they do is known, or what they begin with.
ROUTERS = ("private", "polytropon", "average", "expert", "retrieval")
MEMBERS = "members.json"


class MemberList(Record):
    """The content of ``members.json``: which members of which library a run is made of."""

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
    """Write a run whose K skills, or experts, are members of a library, each with a task.

    The sections skills and moe take their number, rank and layers from the members; ``mix`` says
    how skills combine where a task uses several. The mean of the ``general`` members is taken from
    the others. ``prepare`` is called with the configuration and the model before it is written.

    Raises:
        ConfigError: If a section does not fit members, or two members have one task.
        CheckpointError: If a member is damaged, or the backbone is not that of the library.
    """
    members = [library.member(name) for name in names]
    tasks = tasks_of(members)
    changes = [member.changes for member in members]
    if general:
        changes = without_general(changes, [library.member(name).changes for name in general])
    layers = stack_members(changes)
    config = with_members(config, layers, mix=mix)
    imported = build_imported(config, layers, tasks)
    backbone = config.backbone
    assert isinstance(backbone, Pretrained)
    if backbone.quantize is None:  # of weights in few bits only the scales could be compared
        found = fingerprint(own_parameters(imported.model), values=True)
        if found != library.base.fingerprint:
            raise CheckpointError(
                f"'{library.folder}' is a library over '{library.base.name}' (fingerprint "
                f"{library.base.fingerprint[:12]}); '{backbone.name}' has {found[:12]}. Name the "
                "model that its members were trained on (-k backbone.name=...)"
            )
    prepare(config, imported)
    facts = MemberList(
        library=str(library.folder.resolve()),
        version=library.version,
        members=[member.card for member in members],
        general=list(general),
    )
    files = {"config.yaml": dump_config(config), MEMBERS: facts.text()}
    save_imported(out, imported, inventory_settings(config, descriptions), files)
    return config, imported


def tasks_of(members: Sequence[Member]) -> list[str]:
    """Return the task of each member; a `ConfigError` if two have one."""
    owners: dict[str, str] = {}
    for member in members:
        task, name = member.card.task, member.card.name
        if task in owners:
            raise ConfigError(
                f"the members '{owners[task]}' and '{name}' are both of the task '{task}', which "
                "has one row: choose among them (--members)"
            )
        owners[task] = name
    return list(owners)


def with_members(
    config: Config, layers: Mapping[str, tuple[Tensor, Tensor]], *, mix: str
) -> Config:
    """Return a configuration whose skills, or experts, are as many and as large as the members."""
    router, moe = config.router.kind, config.moe
    if config.backbone.kind != "pretrained" or config.backbone.train:
        raise ConfigError(
            "the members of a library are of one pretrained backbone, as it is: set "
            "backbone.kind: pretrained, and train: false"
        )
    if config.aggregation.kind != "mixture":
        raise ConfigError(
            f"aggregation.kind '{config.aggregation.kind}' learns to attend to the skills of a "
            "run: make the run first, and name it in aggregation.source of a training"
        )
    if moe is None:
        if router not in ROUTERS:
            raise ConfigError(
                f"router.kind '{router}' says nothing of members that it was not trained with; "
                f"use {', '.join(ROUTERS)}, or a section moe, whose tokens choose among members"
            )
        skills = imported_skills(
            layers, mix=mix, per_task=router in ("private", "retrieval"), scale=1.0
        )
        return config.model_copy(update={"skills": skills})
    if config.skills.kind != "none":
        raise ConfigError(
            "members are the skills of tasks or the experts of tokens, and not both: with a "
            "section moe set skills.kind: none"
        )
    own = getattr(moe.experts, "shared_down", True)
    if own or moe.every != 1 or moe.stacks is not None:
        raise ConfigError(
            "members are low-rank, with factors of their own, and bring their layers: set "
            "moe.experts.kind: lora, and leave out its shared_down, moe.every and moe.stacks"
        )
    n_members, _, rank = next(iter(layers.values()))[0].shape
    experts = LoRAExperts(kind="lora", rank=rank, scale=1.0)
    update = {"experts": experts, "n_experts": n_members, "targets": list(layers)}
    try:
        moe = MoE.model_validate({**dict(moe), **update})
    except ValidationError as error:
        told = "; ".join(str(one["msg"]) for one in error.errors(include_url=False))
        raise ConfigError(f"section moe, with {n_members} members: {told}") from error
    return config.model_copy(update={"moe": moe})

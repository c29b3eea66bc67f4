"""Members for a library, from folders of PEFT, from runs and from other libraries."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mttl.assembly.model import Built, load_run
from mttl.checkpoints.inventory_folder import find_inventory
from mttl.checkpoints.model_hub import download
from mttl.inference.model_card import scores_of
from mttl.io.errors import CheckpointError, ConfigError, MttlError
from mttl.io.reading import read_bytes, read_text
from mttl.io.yaml12 import YAMLError, parse, read_yaml
from mttl.library.library_folder import CARD, LIBRARY, Member, is_library, open_library
from mttl.library.member_card import BaseModel, MemberCard, parse_card
from mttl.merging.fold import task_mixing
from mttl.merging.low_rank_factors import relative_error
from mttl.peft_format.base_facts import lasting_name
from mttl.peft_format.lora_export import mixture_adapter, skill_mixing
from mttl.peft_format.lora_import import read_lora, without_base
from mttl.peft_format.peft_folder import CONFIG, PICKLE, TENSORS, PeftFolder, read_peft

# What is asked of the hub: a folder of PEFT, a run, or a library.
WANTED = (CONFIG, TENSORS, "README.md", CARD, "skills/*", "backbone/*", "config.yaml")
WANTED += ("results.csv", "*.json", LIBRARY, "members/*")
# Settings of PEFT that say how an adapter was trained.
TRAINING = ("lora_alpha", "r", "lora_dropout", "use_rslora", "init_lora_weights", "peft_version")


@dataclass(frozen=True)
class MemberOptions:
    """What becomes a member of what is found.

    Attributes:
        rank: Of runs, the largest rank; by default what an exact copy takes.
        skills: Of runs, take each skill instead of each task.
        backbone: Where the base model of runs is now.
    """

    rank: int | None = None
    skills: bool = False
    backbone: str | None = None


@dataclass
class Found:
    """What sources hold, and what is wrong with them.

    Attributes:
        members: In the order of the sources; each card names its base, or gives its fingerprint.
        problems: A line for each source, or part of one, that cannot be read.
        runs: How many of the sources are runs.
    """

    members: list[Member] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    runs: int = 0


def gather(sources: Sequence[str], wanted: MemberOptions) -> Found:
    """Read everything that sources name.

    Args:
        sources: Folders, patterns with ``*``, ``?`` and ``[``, or ``OWNER/NAME`` on the hub, which
            may be followed by ``@REVISION``.
        wanted: What becomes a member.
    """
    found = Found()
    for source in sources:
        try:
            folders = _folders(source)
        except MttlError as error:
            found.problems.append(str(error))
            continue
        for folder, name in folders:
            try:
                _read(folder, name, wanted, found)
            except MttlError as error:
                found.problems.append(str(error))
    return found


def base_problems(
    members: Sequence[Member], base: BaseModel, *, trusted: bool
) -> tuple[list[Member], list[str]]:
    """Return the members whose base model is the given one, and why others are not.

    Runs and libraries know the fingerprint of theirs; adapters of PEFT know its name alone.
    """
    right, problems = [], []
    for member in members:
        known, source = member.card.base, member.card.source
        if known.get("fingerprint", base.fingerprint) != base.fingerprint:
            problems.append(
                f"{source} is of another base model: '{known['name']}' has the fingerprint "
                f"{known['fingerprint'][:12]}, '{base.name}' {base.fingerprint[:12]}"
            )
        elif "fingerprint" in known or trusted:
            right.append(member)
        elif not known["name"]:
            problems.append(f"{source} does not name its base model; give it (--backbone)")
        elif lasting_name(known["name"]) == base.name:
            right.append(member)
        else:
            problems.append(
                f"{source} is of another base model: '{known['name']}', not '{base.name}'. If they "
                f"are one model under two names, give --backbone {base.name}"
            )
    return right, problems


def adapters_in(folder: Path) -> list[Path]:
    """Return the folders of adapters in a folder of several, or the folder itself."""
    if _is_adapter(folder):
        return [folder]
    return sorted(path for path in folder.glob("*/") if _is_adapter(path)) or [folder]


def _is_adapter(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, TENSORS, PICKLE))


def _folders(source: str) -> list[tuple[Path, str]]:
    """Return the folders that a source stands for, with names for members."""
    if glob.has_magic(source) and not Path(source).exists():
        folders = [Path(path) for path in sorted(glob.glob(source)) if Path(path).is_dir()]
        if not folders:
            raise ConfigError(f"no folder matches '{source}'")
    elif Path(source).is_dir():
        folders = [Path(source)]
    elif Path(source).exists():
        raise ConfigError(f"'{source}' is a file; give the folder of an adapter, or a run")
    else:
        name, _, revision = source.partition("@")
        folder = download(name, "an adapter or a run", revision=revision or None, only=WANTED)
        return [(folder, name.rpartition("/")[2])]
    return [(folder, folder.resolve().name) for folder in folders]


def _read(folder: Path, name: str, wanted: MemberOptions, found: Found) -> None:
    if is_library(folder):
        found.members += _of_library(folder)
    elif not _is_adapter(folder) and find_inventory(folder):
        found.runs += 1
        _of_run(folder, wanted, found)
    else:
        for path in adapters_in(folder):
            try:
                own = name if path == folder else path.name
                found.members.append(_of_peft(path, own, wanted.backbone))
            except MttlError as error:
                found.problems.append(str(error))


def _of_library(folder: Path) -> Iterator[Member]:
    library = open_library(folder)
    return (library.member(name) for name in library.names)


def _of_peft(path: Path, name: str, base: str | None) -> Member:
    folder = read_peft(path)
    changes = read_lora(without_base(folder, base or folder.config.get("base_model_name_or_path")))
    card = MemberCard(name=name, task=name, source=f"'{path}'")
    if (path / CARD).exists():  # a member that went out, and comes back
        own = parse_card(read_bytes(path / CARD, CheckpointError), f"'{path / CARD}'")
        card = own.model_copy(update={"name": name, "source": card.source})
    else:
        told = _front_matter(path / "README.md")
        card = MemberCard(
            name=name,
            task=name,
            source=card.source,
            data=_told(told.get("datasets")),
            licence=_told(told.get("license")),
            training=_training(folder),
        )
    return Member(card.model_copy(update={"base": {"name": _base_name(folder)}}), changes)


def _base_name(folder: PeftFolder) -> str:
    name = folder.config.get("base_model_name_or_path")
    return name if isinstance(name, str) else ""


def _training(folder: PeftFolder) -> dict[str, Any]:
    values = {name: folder.config.get(name) for name in TRAINING}
    return {name: value for name, value in values.items() if value is not None}


def _front_matter(path: Path) -> dict[str, Any]:
    """Return what stands at the head of a model card; nothing where there is none."""
    try:
        head = read_text(path, CheckpointError).split("---\n", 2)
        told = parse(head[1]) if len(head) == 3 and not head[0] else {}
    except (CheckpointError, YAMLError):
        return {}
    return told if isinstance(told, dict) else {}


def _told(value: Any) -> str | None:
    words = value if isinstance(value, list) else [value]
    return ", ".join(str(word) for word in words if isinstance(word, str)) or None


def _of_run(path: Path, wanted: MemberOptions, found: Found) -> None:
    """Read each task, or each skill, of a run."""
    built = load_run(path, backbone=wanted.backbone)
    if built.meta["backbone"]["trained"]:
        raise CheckpointError(
            f"'{path}' trained its backbone too: its skills belong to a model of its own. Merge a "
            "task instead (mttl merge-task)"
        )
    if wanted.skills:
        count = range(built.model.router.n_skills)
        chosen = [(f"{path.resolve().name}-{k}", skill_mixing(built.model, k), None) for k in count]
    else:
        chosen = []
        for task in built.tasks:
            mixing = task_mixing(built.model.router, int(built.task_ids([task])))
            chosen.append((task, mixing, task))
    about = _run_facts(path)
    for name, mixing, task in chosen:
        source = f"'{path}', {'skill' if task is None else 'task'} '{name}'"
        try:
            changes = mixture_adapter(built.model, mixing, wanted.rank)
        except CheckpointError as error:
            found.problems.append(f"{source}: {error}")
            continue
        lost = relative_error(list(changes.values()))
        card = MemberCard(
            name=name,
            task=task or name,
            source=source,
            base=_base_of(built),
            scores=[] if task is None else _scores(path, task),
            data=about.get("data"),
            training=about["training"]
            | {"prefix": built.form.prefix}
            | ({"lost_by_cut": lost} if lost else {}),
        )
        found.members.append(Member(card, changes))


def _base_of(built: Built) -> dict[str, Any]:
    return {"name": built.base, "fingerprint": built.meta["backbone"]["fingerprint"]}


def _scores(run: Path, task: str) -> list[dict[str, str]]:
    return [
        {name: row[name] for name in ("split", "metric", "score", "n")}
        for row in scores_of(run, [task])
    ]


def _run_facts(run: Path) -> dict[str, Any]:
    """Return the data and the settings of a run's training, as far as its files tell."""
    path = next((p for p in (run / "config.yaml", run.parent / "config.yaml") if p.is_file()), None)
    config = read_yaml(path, CheckpointError) if path else {}
    config = config if isinstance(config, dict) else {}
    sections = {name: part for name, part in config.items() if isinstance(part, dict)}
    data, optim, trainer = (sections.get(name, {}) for name in ("data", "optim", "trainer"))
    training = {name: optim.get(name) for name in ("kind", "lr", "schedule")}
    training |= {"batch_size": data.get("batch_size"), "max_steps": trainer.get("max_steps")}
    known = {name: value for name, value in training.items() if value is not None}
    return {"data": data.get("dir"), "training": known}

"""Readers of library members from PEFT folders, runs and other libraries."""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import metadata_load

from mttl.aggregation.packed_weights import is_transposed
from mttl.assembly.build_backbone import build_backbone, place_of
from mttl.assembly.model import load_run
from mttl.checkpoints.inventory_files import find_inventory
from mttl.checkpoints.model_hub import download
from mttl.checkpoints.model_tensors import backbone_parameters, fingerprint
from mttl.checkpoints.run_folder import settings_of
from mttl.config.backbone_schema import Pretrained
from mttl.inference.model_card import scores_of
from mttl.io.errors import CheckpointError, ConfigError, MttlError
from mttl.library.library_folder import Member, is_library, open_library
from mttl.library.member_card import CARD, LIBRARY, BaseModel, MemberCard
from mttl.merging.fold import skill_mixing, task_mixing
from mttl.merging.low_rank_factors import relative_error
from mttl.peft_format.peft_folder import (
    CONFIG,
    PICKLE,
    TENSORS,
    PeftFolder,
    read_peft,
    task_type_of,
)
from mttl.peft_format.peft_lora import mixture_adapter, read_lora
from mttl.skills.targets import linear_features

# Files that are downloaded from the hub: of a PEFT folder, a run, or a library.
WANTED = (CONFIG, TENSORS, "README.md", CARD, "skills/*", "backbone/*", "config.yaml")
WANTED += ("results.csv", "*.json", LIBRARY, "members/*")
# Settings of the training of runs, and of PEFT adapters, for cards.
RUN_SETTINGS = ("optim.kind", "optim.lr", "optim.schedule", "data.batch_size", "trainer.max_steps")
TRAINING = ("lora_alpha", "r", "lora_dropout", "use_rslora", "init_lora_weights", "peft_version")

# Base weights that PEFT stores next to adapters of an output head.
STORED = ".base_layer.weight"


@dataclass
class Found:
    """Members of several sources, and problems of unreadable ones."""

    rank: int | None = None  # largest rank of members of runs; by default that of an exact copy
    skills: bool = False  # whether members of runs are skills instead of tasks
    backbone: str | None = None  # current folder of the base model of runs
    # In the order of the sources; each card has the name or the fingerprint of its base.
    members: list[Member] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of unreadable sources or parts
    runs: int = 0  # number of sources that are runs

    def read(self, sources: Sequence[str]) -> None:
        """Read all members of sources.

        Sources are folders, patterns with ``*``, ``?`` and ``[``, or ``OWNER/NAME`` on the hub,
        optionally followed by ``@REVISION``.
        """
        for source in sources:
            with self._noted():
                for folder, name in _folders(source):
                    with self._noted():
                        self._read_folder(folder, name)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except MttlError as error:
            self.problems.append(str(error))

    def _read_folder(self, folder: Path, name: str) -> None:
        is_run = find_inventory(folder) or (folder / "config.yaml").is_file()  # or unfinished
        if is_library(folder):
            library = open_library(folder)
            self.members += map(library.member, library.members)
        elif is_run and not _is_adapter(folder):
            self.runs += 1
            self._read_run(folder)
        else:
            for path in adapters_in(folder):
                with self._noted():
                    own = name if path == folder else path.name
                    self.members.append(_of_peft(path, own, self.backbone))

    def _read_run(self, path: Path) -> None:
        """Read each task, or each skill, of a run."""
        built = load_run(path, backbone=self.backbone)
        built.require(stands_alone=f"reading '{path}'")
        model, backbone = built.model, built.meta["backbone"]
        if backbone["trained"]:
            raise CheckpointError(
                f"'{path}' also trained its backbone; merge a task instead (mttl merge-task)"
            )
        kind, mixing_of, rows = "task", task_mixing, scores_of(path, built.tasks)
        names = built.tasks
        if self.skills:
            kind, mixing_of, rows = "skill", skill_mixing, []
            names = tuple(f"{path.resolve().name}-{k}" for k in range(model.router.n_skills))
        data, training = _run_facts(path)
        for place, name in enumerate(names):
            source = f"'{path}', {kind} '{name}'"
            try:
                changes = mixture_adapter(model, mixing_of(model.router, place), self.rank)
            except CheckpointError as error:
                self.problems.append(f"{source}: {error}")
                continue
            lost = relative_error(list(changes.values()))
            facts = {"prefix": built.form.prefix} | ({"lost_by_cut": lost} if lost else {})
            card = MemberCard(
                name=name,
                task=name,
                source=source,
                base={"name": built.base, "fingerprint": backbone["fingerprint"]},
                scores=[
                    {key: row[key] for key in ("split", "metric", "score", "n")}
                    for row in rows
                    if row["task"] == name
                ],
                data=data,
                training=training | facts,
                options=built.form.task_options.get(name, []),
                template=built.form.task_templates.get(name),
            )
            self.members.append(Member(card, changes))


def base_problems(
    members: Sequence[Member], base: BaseModel, *, trusted: bool
) -> tuple[list[Member], list[str]]:
    """Return the members with a given base model, and the reasons against the others.

    Members of runs and libraries have the fingerprint of their base, PEFT adapters only its name,
    which counts unless the base is ``trusted``.
    """
    right, problems = [], []
    for member in members:
        known, source = member.card.base, member.card.source
        if known.get("fingerprint", base.fingerprint) != base.fingerprint:
            problems.append(
                f"{source} has another base model: '{known['name']}' (fingerprint "
                f"{known['fingerprint'][:12]}), not '{base.name}' ({base.fingerprint[:12]})"
            )
        elif "fingerprint" in known or trusted:
            right.append(member)
        elif not known["name"]:
            problems.append(f"{source} does not name its base model; set it by --backbone")
        elif lasting_name(known["name"]) == base.name:
            right.append(member)
        else:
            problems.append(
                f"{source} has another base model: '{known['name']}', not '{base.name}'. If both "
                f"are the same model, set --backbone {base.name}"
            )
    return right, problems


def describe_base(name: str) -> BaseModel:
    """Load a model and return its description for a library."""
    network = build_backbone(Pretrained(kind="pretrained", name=name))
    features = {path: linear_features(module) for path, module in network.named_modules()}
    return BaseModel(
        name=lasting_name(name),
        fingerprint=fingerprint(backbone_parameters(network), values=True),
        task_type=task_type_of(network),
        transposed=any(map(is_transposed, network.modules())),
        layers={path: sizes for path, sizes in features.items() if sizes is not None},
    )


def lasting_name(name: str) -> str:
    """Return the name of a model, with an absolute path for folders."""
    place = place_of(name)
    return str(Path(place).resolve()) if Path(place).is_dir() else name


def without_base(folder: PeftFolder, base: str | None) -> PeftFolder:
    """Return an adapter without the base weights that PEFT stores, such as those of a head.

    Raises CheckpointError if they differ from the base model's.
    """
    stored = {name: value for name, value in folder.tensors.items() if name.endswith(STORED)}
    if not stored or not base:
        return folder
    network = build_backbone(Pretrained(kind="pretrained", name=base))
    own = dict(network.named_parameters(remove_duplicate=False))
    for name, value in stored.items():
        weight = own.get(name.replace(STORED, ".weight"))
        if weight is None or not torch.equal(weight.to(value.dtype), value):
            raise CheckpointError(
                f"'{folder.path}' stores '{name}' with other values than its base model '{base}'; "
                "trained or resized base weights cannot be read. Merge the adapter into the model "
                "with PEFT, or train it without them"
            )
    kept = {name: value for name, value in folder.tensors.items() if name not in stored}
    return replace(folder, tensors=kept)


def adapters_in(folder: Path) -> list[Path]:
    """Return the folders of adapters inside a folder, or the folder itself."""
    if _is_adapter(folder):
        return [folder]
    return sorted(path for path in folder.glob("*/") if _is_adapter(path)) or [folder]


def _is_adapter(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, TENSORS, PICKLE))


def _folders(source: str) -> list[tuple[Path, str]]:
    """Return the folders of a source, with names for members."""
    if glob.has_magic(source) and not Path(source).exists():
        folders = [Path(path) for path in sorted(glob.glob(source)) if Path(path).is_dir()]
        if not folders:
            raise ConfigError(f"no folder matches '{source}'")
    elif Path(source).is_dir():
        folders = [Path(source)]
    elif Path(source).exists():
        raise ConfigError(f"'{source}' is a file; use the folder of an adapter or a run")
    else:
        name, _, revision = source.partition("@")
        folder = download(name, "an adapter or a run", revision=revision or None, only=WANTED)
        return [(folder, name.rpartition("/")[2])]
    return [(folder, folder.resolve().name) for folder in folders]


def _of_peft(path: Path, name: str, base: str | None) -> Member:
    folder = read_peft(path)
    below = folder.config.get("base_model_name_or_path")
    changes = read_lora(without_base(folder, base or below))
    if (path / CARD).exists():  # an exported member
        card = MemberCard.read(path / CARD)
    else:
        about, config = _front_matter(path / "README.md"), folder.config
        card = MemberCard(
            name=name,
            task=name,
            source="",
            training={key: config[key] for key in TRAINING if config.get(key) is not None},
            data=_joined(about.get("datasets")),
            licence=_joined(about.get("license")),
        )
    own = {"name": below if isinstance(below, str) else ""}
    here = {"name": name, "source": f"'{path}'", "base": own}
    return Member(card.model_copy(update=here), changes)


def _front_matter(path: Path) -> dict[str, Any]:
    """Return the front matter of a model card; empty if there is none, or it cannot be read."""
    try:
        return metadata_load(path) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _joined(value: Any) -> str | None:
    words = value if isinstance(value, list) else [value]
    return ", ".join(str(word) for word in words if isinstance(word, str)) or None


def _run_facts(run: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the data and the settings of a run's training, if its files have them."""
    place = next((one for one in (run, run.parent) if (one / "config.yaml").is_file()), None)
    settings = settings_of(place) if place else {}
    training = {key.rpartition(".")[2]: settings.get(key) for key in RUN_SETTINGS}
    known = {name: value for name, value in training.items() if value is not None}
    return settings.get("data.dir"), known

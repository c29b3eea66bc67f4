"""A library on disk: PEFT adapters with a card each, and an index file.

| path | content |
|---|---|
| ``library.json`` | format version, number of changes, base model, members with hashes |
| ``members/<name>/`` | a LoRA adapter of PEFT, and ``card.json`` (`mttl.library.member_card`) |

A member belongs to the library once ``library.json`` has its name; the file is replaced atomically.
So several members are added together or not at all, and the next writer removes the files of a
killed one. Writers wait at ``.lock``; readers do not.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mttl.io.errors import CheckpointError, ConfigError, nearest, some
from mttl.io.files import locked, new_folder
from mttl.io.reading import file_sha256, shown
from mttl.io.record import Record
from mttl.library.member_card import (
    CARD,
    LIBRARY,
    BaseModel,
    MemberCard,
    check_library,
    member_name,
)
from mttl.merging.low_rank_factors import LowRank
from mttl.peft_format.peft_folder import CONFIG, TENSORS, of_base, read_peft, write_peft
from mttl.peft_format.peft_lora import lora_adapter, read_lora


@dataclass(frozen=True)
class Member:
    """A skill with its card."""

    card: MemberCard
    changes: Mapping[str, LowRank]

    def trimmed(self) -> "Member":
        """Return the member without columns and layers of zeros."""
        kept = {path: self.changes[path].trimmed() for path in sorted(self.changes)}
        return Member(self.card, {path: part for path, part in kept.items() if part.rank})


class Library(Record):
    """The content of ``library.json`` at the time of opening."""

    format_version: Literal[1] = 1
    version: int  # number of changes
    # Hash of each member's files by name, in alphabetical order.
    members: dict[Annotated[str, AfterValidator(member_name)], str]
    base: BaseModel
    folder: Path = Field(default=Path(), exclude=True)  # of the library

    def chosen(self, patterns: Sequence[str] = ()) -> list[str]:
        """Return the names that match patterns with ``*`` and ``?``; all without patterns."""
        found: dict[str, None] = {}
        for pattern in patterns or ["*"]:
            names = [name for name in self.members if fnmatchcase(name, pattern)]
            if not names:
                raise ConfigError(
                    f"'{self.folder}' has no member '{pattern}'.{nearest(pattern, self.members)} "
                    f"List its {len(self.members)} members by mttl library list"
                )
            found |= dict.fromkeys(names)
        return list(found)

    def place(self, name: str) -> Path:
        """Return the folder of a member."""
        return self.folder / "members" / name

    def card(self, name: str) -> MemberCard:
        """Return the card of a member; CheckpointError if it is missing or damaged."""
        return MemberCard.read(self.place(name) / CARD)

    def member(self, name: str) -> Member:
        """Return a member; CheckpointError if a file is missing or differs from the hash."""
        folder = self.place(name)
        if _digest(folder) != self.members[name]:
            raise CheckpointError(f"'{folder}' is damaged; remove the member and add it again")
        return Member(self.card(name), read_lora(read_peft(folder))).trimmed()

    def changed(self, members: Mapping[str, str]) -> "Library":
        """Write the library with other members, and return it."""
        update = {"version": self.version + 1, "members": dict(sorted(members.items()))}
        library = self.model_copy(update=update)
        library.write(self.folder / LIBRARY)
        return library


def open_library(folder: str | Path) -> Library:
    """Return the library in a folder; CheckpointError if there is none in this format."""
    return Library.read(check_library(folder)).model_copy(update={"folder": Path(folder)})


def is_library(folder: str | Path) -> bool:
    """Return whether a folder is a library."""
    return (Path(folder) / LIBRARY).exists()


def member_problems(
    members: Iterable[Member], base: BaseModel, present: Iterable[str] = ()
) -> list[str]:
    """Return the reasons why members cannot be added to a library, as lines."""
    problems, taken = [], dict.fromkeys(present, "the library")
    for member in members:
        name, source = member.card.name, member.card.source
        try:
            member_name(name)
        except ValueError as error:
            problems.append(f"{source}: the member's name {shown(name)} {error}")
        if name in taken:
            problems.append(f"{source}: the name '{name}' is already used by {taken[name]}")
        taken.setdefault(name, source)
        if not member.changes:
            problems.append(f"{source} changes no layer")
        layers = {path: base.layers.get(path) for path in member.changes}
        if absent := [repr(path) for path, sizes in layers.items() if sizes is None]:
            problems.append(f"{source}: the base model has no linear layer {some(absent, 3)}")
        for path, sizes in layers.items():
            found = member.changes[path].sizes
            if sizes is not None and found != sizes:
                problems.append(
                    f"{source}: '{path}' has {found[0]} -> {found[1]} features, but the base model "
                    f"has {sizes[0]} -> {sizes[1]}"
                )
                break
    return problems


def add_members(folder: str | Path, base: BaseModel, members: Sequence[Member]) -> Library:
    """Add members to a library, which may be new: all of them, or none after an error."""
    path, members = Path(folder), [member.trimmed() for member in members]
    _require_new_members(path, base, members)  # before the lock creates the folder
    with locked(path / ".lock"):
        before = _require_new_members(path, base, members)
        if not is_library(path):
            before.write(path / LIBRARY)
        _sweep(before)
        added = {member.card.name: _write_member(before, member) for member in members}
        return before.changed(before.members | added)


def remove_members(folder: str | Path, patterns: Sequence[str]) -> list[str]:
    """Remove the members that match patterns (see `Library.chosen`), and return their names."""
    open_library(folder).chosen(patterns)
    with locked(Path(folder) / ".lock"):
        library = open_library(folder)
        names = library.chosen(patterns)
        left = {name: own for name, own in library.members.items() if name not in names}
        _sweep(library.changed(left))
    return names


def library_to_be(folder: str | Path) -> Library | None:
    """Return the library in a folder; None if it is new or empty, ConfigError for other files."""
    path = Path(folder)
    # Hidden files are locks and temporary files of writers.
    strange = path.is_file() or (
        path.is_dir() and any(not one.name.startswith(".") for one in path.iterdir())
    )
    if is_library(path):  # checked last, since another writer may create it meanwhile
        return open_library(path)
    if strange:
        raise ConfigError(f"'{path}' is not a library but has other files; use a new folder")
    return None


def _require_new_members(folder: Path, base: BaseModel, members: Sequence[Member]) -> Library:
    library = library_to_be(folder) or Library(version=0, members={}, base=base, folder=folder)
    if library.base.fingerprint != base.fingerprint:
        raise CheckpointError(
            f"the base model of the library '{folder}' is '{library.base.name}' (fingerprint "
            f"{library.base.fingerprint[:12]}), not '{base.name}' ({base.fingerprint[:12]})"
        )
    if problems := member_problems(members, base, library.members):
        raise CheckpointError("nothing was added:\n" + "\n".join(problems))
    return library


def _sweep(library: Library) -> None:
    """Remove folders of members that the library does not have."""
    for path in (library.folder / "members").glob("*"):
        if path.name not in library.members:
            shutil.rmtree(path, ignore_errors=True)


def _write_member(library: Library, member: Member) -> str:
    """Write a member's folder, with layers padded to one rank, and return its hash."""
    base, changes = library.base, member.changes
    rank = max(part.rank for part in changes.values())
    padded = {path: part.padded(rank) for path, part in changes.items()}
    config, tensors = lora_adapter(padded, transposed=base.transposed)
    config |= of_base(base.name, base.task_type)
    place = library.place(member.card.name)
    with new_folder(place) as new:
        write_peft(new, config, {name: tensor.float() for name, tensor in tensors.items()})
        filled = {
            "base": {"name": base.name, "fingerprint": base.fingerprint},
            "targets": {path: part.rank for path, part in changes.items()},
            "weights": {
                "sha256": file_sha256(new / TENSORS, CheckpointError),
                "parameters": sum(part.rank * sum(part.sizes) for part in changes.values()),
            },
        }
        member.card.model_copy(update=filled).write(new / CARD)
    return _digest(place)


def _digest(member: Path) -> str:
    sums = [file_sha256(member / name, CheckpointError) for name in (CARD, CONFIG, TENSORS)]
    return sha256("".join(sums).encode()).hexdigest()

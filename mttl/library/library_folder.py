"""A library on disk: adapters of PEFT with a card each, and one file that says which of them count.

| path | content |
|---|---|
| ``library.json`` | format version, number of changes so far, base model, members with hashes |
| ``members/<name>/`` | a LoRA adapter of PEFT, and ``card.json`` (`mttl.library.member_card`) |

A member belongs to the library once ``library.json`` names it, which is replaced in one step. So
many members come in, or none; what a writer that was killed has left is removed by the next one.
Writers wait for each other at ``.lock``; readers need not.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, PrivateAttr

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

    def told(self, name: str | None, licence: str | None, data: str | None) -> "Member":
        """Return the member with the given words on its card; ``*`` in a name is its own name."""
        own = name and name.replace("*", self.card.name)
        given = {"name": own, "licence": licence, "data": data}
        words: dict[str, Any] = {key: word for key, word in given.items() if word is not None}
        return replace(self, card=self.card.model_copy(update=words))

    def trimmed(self) -> "Member":
        """Return the same member without what fills ranks and layers up with zeros."""
        kept = {path: self.changes[path].trimmed() for path in sorted(self.changes)}
        return Member(self.card, {path: part for path, part in kept.items() if part.rank})


class Library(Record):
    """The content of ``library.json`` as it was when the library was opened."""

    format_version: Literal[1] = 1
    version: int  # number of changes so far
    # Hash of each member's files, by name, in alphabetical order.
    members: dict[Annotated[str, AfterValidator(member_name)], str]
    base: BaseModel
    _folder: Path = PrivateAttr()

    def at(self, folder: str | Path) -> Self:
        """Return the library, which lies in the folder."""
        self._folder = Path(folder)
        return self

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self._folder

    @property
    def names(self) -> list[str]:
        """Names of the members."""
        return list(self.members)

    def chosen(self, patterns: Sequence[str] = ()) -> list[str]:
        """Return the names that patterns with ``*`` and ``?`` match; without any, all."""
        found: dict[str, None] = {}
        for pattern in patterns or ["*"]:
            names = [name for name in self.members if fnmatchcase(name, pattern)]
            if not names:
                raise ConfigError(
                    f"'{self.folder}' has no member '{pattern}'.{nearest(pattern, self.members)} "
                    f"It has {len(self.members)}: mttl library list shows them"
                )
            found |= dict.fromkeys(names)
        return list(found)

    def place(self, name: str) -> Path:
        """Return the folder of a member."""
        return self.folder / "members" / name

    def card(self, name: str) -> MemberCard:
        """Return the card of a member; a `CheckpointError` says that it is missing or damaged."""
        return MemberCard.read(self.place(name) / CARD)

    def member(self, name: str) -> Member:
        """Return a member; a `CheckpointError` if a file is missing, or not the one noted."""
        folder = self.place(name)
        if _digest(folder) != self.members[name]:
            raise CheckpointError(
                f"'{folder}' is damaged (its checksum is not the one noted in {LIBRARY}). Copy it "
                "again, or remove the member and add it again"
            )
        return Member(self.card(name), read_lora(read_peft(folder))).trimmed()

    def changed(self, members: Mapping[str, str]) -> "Library":
        """Write the library with other members; return it."""
        update = {"version": self.version + 1, "members": dict(sorted(members.items()))}
        library = self.model_copy(update=update)
        library.write(self.folder / LIBRARY)
        return library


def open_library(folder: str | Path) -> Library:
    """Read which members a library has; `CheckpointError` if there is none in this format."""
    return Library.read(check_library(folder)).at(folder)


def is_library(folder: str | Path) -> bool:
    """Return whether a folder is a library."""
    return (Path(folder) / LIBRARY).exists()


def member_problems(
    members: Iterable[Member], base: BaseModel, present: Iterable[str] = ()
) -> list[str]:
    """Return why members cannot belong to a library, a line each; empty if all can."""
    problems, taken = [], dict.fromkeys(present, "the library")
    for member in members:
        name, source = member.card.name, member.card.source
        try:
            member_name(name)
        except ValueError as error:
            problems.append(f"{source}: the name of a member is {shown(name)}; it {error}")
        if name in taken:
            problems.append(f"{source}: the name '{name}' is taken by {taken[name]}")
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
                    f"{source}: '{path}' has {found[0]} -> {found[1]} features; in the base model "
                    f"it has {sizes[0]} -> {sizes[1]}"
                )
                break
    return problems


def add_members(folder: str | Path, base: BaseModel, members: Sequence[Member]) -> Library:
    """Add all members to a library, which may be new, or none; their cards are filled in.

    Raises:
        CheckpointError: If one cannot be a member, or the library has another base model; all
            reasons are listed, and nothing is written.
    """
    path, members = Path(folder), [member.trimmed() for member in members]
    _require_new_members(path, base, members)  # without a lock: nothing is made for what is refused
    with locked(path / ".lock"):
        before = _require_new_members(path, base, members)
        if not is_library(path):
            before.write(path / LIBRARY)
        _sweep(before)
        added = {member.card.name: _write_member(before, member) for member in members}
        return before.changed(before.members | added)


def remove_members(folder: str | Path, patterns: Sequence[str]) -> list[str]:
    """Remove the members that patterns match (see `Library.chosen`); return their names."""
    open_library(folder).chosen(patterns)
    with locked(Path(folder) / ".lock"):
        library = open_library(folder)
        names = library.chosen(patterns)
        left = {name: own for name, own in library.members.items() if name not in names}
        _sweep(library.changed(left))
    return names


def library_to_be(folder: str | Path) -> Library | None:
    """Return the library in a folder, or None where one can be made: no other files lie there."""
    path = Path(folder)
    # What is hidden is a lock, or what another writer begins with.
    strange = path.is_file() or (
        path.is_dir() and any(not one.name.startswith(".") for one in path.iterdir())
    )
    if is_library(path):  # asked last: it may have been made meanwhile
        return open_library(path)
    if strange:
        raise ConfigError(f"'{path}' is not a library and holds other files; name a new folder")
    return None


def _require_new_members(folder: Path, base: BaseModel, members: Sequence[Member]) -> Library:
    library = library_to_be(folder) or Library(version=0, members={}, base=base).at(folder)
    if library.base.fingerprint != base.fingerprint:
        raise CheckpointError(
            f"'{folder}' is a library over '{library.base.name}' (fingerprint "
            f"{library.base.fingerprint[:12]}), not over '{base.name}' ({base.fingerprint[:12]})"
        )
    if problems := member_problems(members, base, library.members):
        raise CheckpointError("nothing was added:\n" + "\n".join(problems))
    return library


def _sweep(library: Library) -> None:
    """Remove what lies among the members and is none."""
    for path in (library.folder / "members").glob("*"):
        if path.name not in library.members:
            shutil.rmtree(path, ignore_errors=True)


def _write_member(library: Library, member: Member) -> str:
    """Write a member's folder; return its hash. Zeros fill its layers up to one rank."""
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

"""A library takes all members that it is given or none, and its files are whole at any moment."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers.command import file_sums
from mttl.io.errors import CheckpointError, ConfigError
from mttl.library.library_folder import (
    Library,
    Member,
    add_members,
    library_to_be,
    open_library,
    remove_members,
)
from mttl.library.member_card import BaseModel, MemberCard
from mttl.merging.low_rank_factors import LowRank

LAYERS = {"a.q": (4, 5), "a.v": (4, 3)}
BASE = BaseModel(
    name="org/base", fingerprint="f" * 64, task_type="CAUSAL_LM", transposed=False, layers=LAYERS
)


def member(name: str, rank: int = 2, *paths: str, seed: int = 0, **facts) -> Member:
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> torch.Tensor:
        return torch.randn(size, rank, generator=generator)

    card = MemberCard(name=name, task=facts.pop("task", name), source=f"'{name}'", **facts)
    chosen = paths or tuple(LAYERS)
    return Member(
        card, {path: LowRank(draw(LAYERS[path][0]), draw(LAYERS[path][1])) for path in chosen}
    )


def test_members_come_back_bit_for_bit(tmp_path):
    told = {"licence": "mit", "data": "words", "training": {"lr": 1e-3}, "scores": [{"score": "1"}]}
    given = [member("one", 3, "a.q", seed=1, **told), member("two", 1, seed=2, task="other")]
    made = add_members(tmp_path / "library", BASE, given)
    assert (made.version, list(made.members)) == (1, ["one", "two"])
    again = open_library(tmp_path / "library")
    assert again == made
    assert again.base == BASE
    for own in given:
        found = again.member(own.card.name)
        assert found.changes.keys() == own.changes.keys()
        for path, part in own.changes.items():
            assert torch.equal(found.changes[path].down, part.down)
            assert torch.equal(found.changes[path].up, part.up)
    card = again.card("one")
    assert {key: getattr(card, key) for key in told} == told
    assert card.targets == {"a.q": 3}
    assert card.base == {"name": "org/base", "fingerprint": "f" * 64}
    assert card.weights["parameters"] == 3 * 9
    assert MemberCard.parse(card.text(), "x") == card


def test_what_fills_up_is_not_kept(tmp_path):
    own = member("one", 2, "a.q")
    parts = {path: part.padded(6) for path, part in own.changes.items()}
    parts["a.v"] = LowRank(torch.zeros(4, 6), torch.zeros(3, 6))
    found = add_members(tmp_path, BASE, [Member(own.card, parts)]).member("one").changes
    assert found.keys() == {"a.q"}
    assert torch.equal(found["a.q"].up, own.changes["a.q"].up)
    nothing = Member(member("none").card, {"a.v": parts["a.v"]})
    with pytest.raises(CheckpointError, match="'none' changes no layer"):
        add_members(tmp_path, BASE, [nothing])


def damage(own: Member, path: str, down: torch.Tensor, up: torch.Tensor) -> Member:
    return Member(own.card, {**own.changes, path: LowRank(down, up)})


BAD = {
    "the name 'old' is already used by the library": member("old"),
    "the name 'twice' is already used by 'twice'": member("twice"),
    "'empty' changes no layer": Member(member("empty").card, {}),
    "base model has no linear layer 'b.k'": damage(
        member("missing"), "b.k", torch.ones(4, 1), torch.ones(5, 1)
    ),
    "'a.q' has 7 -> 5 features, but the base model has 4 -> 5": damage(
        member("wide"), "a.q", torch.ones(7, 1), torch.ones(5, 1)
    ),
    's name "../out" must not start': member("../out"),
    's name ".hidden" must not start': member(".hidden"),
}


def test_bad_members_are_listed_and_nothing_changes(tmp_path):
    add_members(tmp_path, BASE, [member("old")])
    before = file_sums(tmp_path)
    given = [member("good"), member("twice"), *BAD.values()]
    with pytest.raises(CheckpointError, match="nothing was added:") as error:
        add_members(tmp_path, BASE, given)
    for message in BAD:
        assert message in str(error.value)
    assert "good" not in str(error.value)
    assert file_sums(tmp_path) == before
    with pytest.raises(CheckpointError, match=r"is 'org/base' \(fingerprint f{12}\), not"):
        add_members(tmp_path, BASE.model_copy(update={"fingerprint": "0" * 64}), [member("good")])
    assert file_sums(tmp_path) == before
    with pytest.raises(CheckpointError, match="nothing was added"):
        add_members(tmp_path / "new", BASE, [member("x"), member("x")])
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not a library but has other files"):
        add_members(tmp_path / "mine", BASE, [member("x")])
    assert library_to_be(tmp_path / "nowhere") is None


def test_what_is_removed_is_gone(tmp_path):
    add_members(tmp_path, BASE, [member(name) for name in ("a1", "a2", "b1")])
    before = file_sums(tmp_path)
    with pytest.raises(ConfigError, match=r"has no member 'b2'\. Did you mean 'b1'"):
        remove_members(tmp_path, ["a*", "b2"])
    assert file_sums(tmp_path) == before
    assert remove_members(tmp_path, ["a*"]) == ["a1", "a2"]
    library = open_library(tmp_path)
    assert (library.version, list(library.members)) == (2, ["b1"])
    assert [path.name for path in (tmp_path / "members").iterdir()] == ["b1"]
    assert list(add_members(tmp_path, BASE, [member("a1")]).members) == ["a1", "b1"]


def test_a_writer_that_died_leaves_nothing(tmp_path, monkeypatch):
    """Before the last step the library is what it was; the next writer clears up."""
    add_members(tmp_path, BASE, [member("old")])
    before = (tmp_path / "library.json").read_bytes()

    def die(library: Library, members: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Library, "changed", die)
        with pytest.raises(KeyboardInterrupt):
            add_members(tmp_path, BASE, [member("lost"), member("more")])
    assert (tmp_path / "library.json").read_bytes() == before
    assert list(open_library(tmp_path).members) == ["old"]
    add_members(tmp_path, BASE, [member("more", seed=3)])
    assert sorted(path.name for path in (tmp_path / "members").iterdir()) == ["more", "old"]


def write(folder: Path, own: str) -> int:
    """Add members, of which the other writer adds some too; return how many of those came in."""
    won = 0
    for number in range(4):
        add_members(folder, BASE, [member(f"{own}{number}")])
        try:
            add_members(folder, BASE, [member(f"{own}-extra{number}"), member(f"both{number}")])
            won += 1
        except CheckpointError as error:
            if f"the name 'both{number}' is already used by the library" not in str(error):
                raise
    return won


def test_two_writers_lose_nothing(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        won = pool.map(partial(write, tmp_path / "library"), ("p", "q"))
    assert sum(won) == 4
    library = open_library(tmp_path / "library")
    assert library.version == 12
    expected = {f"{name}{number}" for name in ("p", "q", "both") for number in range(4)}
    assert set(library.members) >= expected
    assert len(library.members) == 16
    for name in library.members:
        library.member(name)


def test_damage_is_told(tmp_path):
    library = add_members(tmp_path, BASE, [member("one"), member("two", seed=1)])
    one, two = (tmp_path / "members" / name for name in ("one", "two"))
    names = ("card.json", "adapter_config.json", "adapter_model.safetensors")
    for name in names:
        path, content = one / name, (one / name).read_bytes()
        for other in (bytes([content[0] ^ 1, *content[1:]]), (two / name).read_bytes()):
            if other != content:  # both have the same configuration
                path.write_bytes(other)
                with pytest.raises(CheckpointError, match="is damaged; remove the member"):
                    library.member("one")
        path.unlink()
        with pytest.raises(CheckpointError, match="does not exist"):
            library.member("one")
        path.write_bytes(content)
    library.member("one")


def test_a_damaged_list_of_members_is_refused(tmp_path):
    add_members(tmp_path, BASE, [member("one")])
    path = tmp_path / "library.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"members": {"../x": "0"}}))
    with pytest.raises(CheckpointError, match="must not start with a dot or contain any of"):
        open_library(tmp_path)
    with pytest.raises(CheckpointError, match="is not a library: it has no library"):
        open_library(tmp_path / "members")

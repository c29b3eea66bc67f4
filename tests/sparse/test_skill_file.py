import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mttl.io.errors import CheckpointError
from mttl.sparse.skill_file import METADATA, SparseChange, SparseSkill, _checksum, digest


def skill() -> SparseSkill:
    start = {"a.weight": torch.randn(40, 30), "b": torch.randn(7).bfloat16()}
    end = {name: value + torch.randn_like(value) for name, value in start.items()}
    support = {"a.weight": torch.tensor([0, 3, 700, 1199]), "b": torch.tensor([6])}
    return SparseSkill.between(start, end, support, {"seed": 3, "of": "é"})


def test_a_file_holds_all_of_it(tmp_path):
    made = skill()
    made.save(tmp_path / "one.safetensors")
    read = SparseSkill.load(tmp_path / "one.safetensors")
    assert read.about == made.about
    assert read.n_entries == made.n_entries == 5
    assert list(read.support) == ["a.weight", "b"]
    for name, change in made.changes.items():
        found = read.changes[name]
        assert (found.shape, found.base) == (change.shape, change.base)
        assert found.indices.dtype == torch.int64
        assert torch.equal(found.indices, change.indices)
        assert torch.equal(found.values, change.values)
        assert found.values.dtype == change.values.dtype


@pytest.mark.parametrize(
    ("places", "dtype"),
    [
        ([5, 255], torch.uint8),
        ([5, 300], torch.uint16),
        ([5, 70_000], torch.int32),
        ([5, 2**32], torch.int64),
        ([], torch.uint8),
    ],
)
def test_gaps_take_as_few_bytes_as_hold_them(places, dtype, tmp_path):
    indices = torch.tensor(places, dtype=torch.int64)
    change = SparseChange((2**40,), indices, torch.ones(len(places)), "x")
    SparseSkill({"w": change}).save(tmp_path / "one.safetensors")
    assert load_file(tmp_path / "one.safetensors")["gaps/w"].dtype == dtype
    assert torch.equal(SparseSkill.load(tmp_path / "one.safetensors").support["w"], indices)


def test_a_digest_tells_bits_and_dtypes_apart():
    zero, negative = torch.zeros(3), -torch.zeros(3)
    assert digest(zero) == digest(torch.zeros(3))
    assert len({digest(zero), digest(negative), digest(zero.double()), digest(zero[:2])}) == 4


def test_infinite_changes_are_refused(tmp_path):
    tensors = {"gaps/w": torch.tensor([1, 2]), "values/w": torch.tensor([1.0, float("inf")])}
    metadata = {"format_version": 1, "tensors": {"w": {"shape": [4], "base": "x"}}, "about": {}}
    metadata["sha256"] = _checksum(tensors, metadata)
    save_file(tensors, tmp_path / "one.safetensors", {METADATA: json.dumps(metadata)})
    with pytest.raises(CheckpointError, match="'values/w' has values that are not finite"):
        SparseSkill.load(tmp_path / "one.safetensors")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "one.safetensors"
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="has no sparse skill"):
        SparseSkill.load(path)

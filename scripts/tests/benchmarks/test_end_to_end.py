"""The benchmark of whole trainings: all sides train on the same rows."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers.command import ROOT, load_recipe
from helpers.gym_fixtures import GymMaker
from helpers.gym_fixtures import make_gym as make_gym

FOLDER = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def end_to_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    yield load_recipe(FOLDER / "end_to_end.py")
    sys.modules.pop("_common", None)


@pytest.fixture
def settings(end_to_end: ModuleType, make_gym: GymMaker, tmp_path: Path) -> argparse.Namespace:
    gym = make_gym({"one": 9, "two": 9})
    end_to_end.learn_tokenizer(gym.directory, tmp_path)
    small = {"size": "tiny", "batches": 2, "batch_size": 4}
    return argparse.Namespace(data=gym.directory, folder=tmp_path, **small)


@pytest.mark.parametrize("model", ["t5", "llama"])
def test_all_sides_train_on_the_same_rows(end_to_end, settings, model) -> None:
    settings.model = model
    config = end_to_end.configuration(end_to_end.OURS, settings)
    data = end_to_end.data_of(config, 8)
    ours: Counter[tuple[int, ...]] = Counter()
    for batch in data.train_dataloader():
        kept = batch["attention_mask"].bool()
        rows = zip(batch["input_ids"], kept, strict=True)
        ours.update(tuple(ids[mask].tolist()) for ids, mask in rows)
    peers = Counter(tuple(row["input_ids"]) for row in end_to_end.peer_rows(data, end_to_end.LOOP))
    assert ours == peers
    assert sum(peers.values()) == 8


@pytest.mark.parametrize("model", ["t5", "llama"])
def test_our_training_runs_again_and_again(end_to_end, settings, model) -> None:
    settings.model = model
    step, _ = end_to_end.build(end_to_end.OURS, settings)
    step()
    step()
    assert (settings.folder / "ours" / "plots" / "routing_history.npz").is_file()


@pytest.mark.parametrize("variant", ["PEFT LoRA, loop", "PEFT Poly, Trainer"])
def test_peers_train(end_to_end: ModuleType, settings: argparse.Namespace, variant: str) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("accelerate")
    settings.model = "llama"
    step, _ = end_to_end.build(variant, settings)
    step()

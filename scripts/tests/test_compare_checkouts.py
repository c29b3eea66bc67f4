"""compare_checkouts.py finds and names every difference between two checkouts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.command import ROOT, load_recipe

SCRIPT = load_recipe(ROOT / "scripts" / "compare_checkouts.py")


def write_folder(root: Path) -> Path:
    """Write a file of each kind into ``root/run``; the text names the folder itself."""
    run = root / "run"
    run.mkdir(parents=True)
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(2)}, run / "skills.safetensors")
    torch.save({"step": 3, "state": [{"mean": torch.ones(2)}]}, run / "last.ckpt")
    np.savez(run / "routing.npz", weights=np.ones(3), tasks=np.array(["x", "y"]))
    (run / "metrics.csv").write_text("step,loss\n0,0.5\n1,0.25\n")
    (run / "results.jsonl").write_text('{"score": 1.0}\n{"score": 0.5}\n')
    (run / "config.yaml").write_text(f"run: {{dir: '{root}', seed: 13}}\n")
    (run / "merges.txt").write_text("a b\n")
    return root


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return write_folder(tmp_path / "one"), write_folder(tmp_path / "other")


def found(folders: tuple[Path, Path]) -> dict[str, list[str]]:
    files = SCRIPT.compare_folders(*folders, ("run",))
    assert len(files) == 7
    return {file: places for file, places in files.items() if places}


def test_equal_folders_have_no_differences(folders: tuple[Path, Path]) -> None:
    assert found(folders) == {}


def change(name: str, value: torch.Tensor) -> Callable[[Path], None]:
    """Return what writes another tensor."""

    def write(run: Path) -> None:
        path = run / "skills.safetensors"
        save_file({**load_file(path), name: value}, path)

    return write


ONE_BIT = torch.ones(2, 3)
ONE_BIT.view(torch.int32)[1, 2] ^= 1


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "file", "line"),
    [
        (change("a", ONE_BIT), "skills.safetensors", "a: largest difference 1.19e-07"),
        (change("b", -torch.zeros(2)), "skills.safetensors", "b: largest difference 0"),
        (
            lambda run: torch.save(
                {"step": 3, "state": [{"mean": torch.ones(2) / 2}]}, run / "last.ckpt"
            ),
            *("last.ckpt", "state[0].mean: largest difference 0.5"),
        ),
        (
            lambda run: np.savez(
                run / "routing.npz", weights=np.ones(3), tasks=np.array(["x", "z"])
            ),
            *("routing.npz", "tasks: ['x', 'y'] before, ['x', 'z'] after"),
        ),
        (
            replace("metrics.csv", "0.25", "0.26"),
            *("metrics.csv", "loss, row 2: '0.25' before, '0.26' after"),
        ),
        (
            replace("results.jsonl", "0.5", "0.75"),
            *("results.jsonl", "[1].score: 0.5 before, 0.75 after"),
        ),
        (
            replace("config.yaml", "{", "{ "),
            *("config.yaml", "the same values, written in another form"),
        ),
        (lambda run: (run / "merges.txt").unlink(), "merges.txt", "missing after"),
    ],
)
def test_a_difference_is_named(folders, change, file, line) -> None:
    change(folders[1] / "run")
    assert found(folders) == {f"run/{file}": [line]}


@pytest.mark.slow
def test_this_checkout_leaves_what_it_leaves(tmp_path: Path) -> None:
    names = ["--only", "resumed", "new level", "merged models"]
    assert SCRIPT.main([str(ROOT), str(ROOT), "--out", str(tmp_path), *names]) == 0

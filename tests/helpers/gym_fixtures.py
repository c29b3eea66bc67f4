"""Fixtures: gyms that are written for a test, and the real one beside the checkout."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from helpers.fact_templates import SHARED
from mttl.tasks.folder import Gym

GymMaker = Callable[..., Gym]


@pytest.fixture
def make_gym(tmp_path: Path) -> GymMaker:
    """Return a function that writes a gym: task -> number of rows, and gives it back."""

    def make(
        sizes: Mapping[str, int],
        *,
        samples: Sequence[int] = (100, 13),
        k: int = 16,
        folder: str = "gym",
        table: str | None = None,
    ) -> Gym:
        root = tmp_path / folder
        for task, size in sizes.items():
            (root / task).mkdir(parents=True)
            for sample in samples:
                for split, n in (("train", size), ("dev", 4), ("test", 3)):
                    # A test file is the same in all samples, as CrossFit's are.
                    mark = split if split == "test" else f"{split} {sample}"
                    lines = [f"{task} {mark} {i}\tanswer {i}\tother {i}\n" for i in range(n)]
                    path = root / task / f"{task}_{k}_{sample}_{split}.tsv"
                    path.write_text("".join(lines), encoding="utf-8")
        if table is not None:
            (root / "TASKS.csv").write_text(table, encoding="utf-8")
        return Gym(root)

    return make


@pytest.fixture
def crossfit() -> Gym:
    """The real CrossFit subset, if it is next to the checkout."""
    folder = SHARED / "crossfit"
    if not folder.is_dir():
        pytest.skip(f"no CrossFit subset at '{folder}'; set MTTL_SHARED to the folder above it")
    return Gym(folder)

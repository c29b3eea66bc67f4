"""The search for the intrinsic dimension: which runs it asks for, and what it writes."""

import math
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from helpers.gyms import write_config, write_gym

sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "intrinsic_dimension.py")


@pytest.mark.parametrize("needed", [10, 40, 300, 4096, 5000])
def test_the_search_narrows_down(needed: int) -> None:
    tried: list[int] = []

    def reaches(dimension: int) -> bool:
        tried.append(dimension)
        return dimension >= needed

    below, enough = SCRIPT.search(reaches, 16, 4096, 1.25)
    growth = [size for size in (16, 64, 256, 1024, 4096) if size < max(17, 4 * needed)]
    assert tried[: len(growth)] == growth
    assert len(set(tried)) == len(tried) <= 5 + 3  # 4 halved three times is below 1.25
    if needed > 4096:
        assert (below, enough) == (4096, None)
    else:
        assert below < needed <= enough
        assert enough <= 1.25 * below or (below, enough) == (0, 16)


def test_neighbours_are_not_halved_for_ever() -> None:
    assert SCRIPT.search(lambda dimension: dimension >= 3, 1, 8, 1.0) == (2, 3)


def test_runs_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def train(files: str, name: str, steps: int, seed: int, out: Path, more: list[str]):
        asked.append((files, name, list(more)))
        dev = (
            80.0
            if name.startswith("reference")
            else 100 * (1 - 1 / math.sqrt(int(name.removeprefix("dimension-"))))
        )
        return SCRIPT.Row(name, 7, dev, dev / 2, 1.0)

    monkeypatch.setattr(SCRIPT, "train", train)
    given = ["--out", str(tmp_path), "--precision", "1.5", "-k", "data.batch_size=8"]
    assert SCRIPT.main(given) == 0
    assert asked[0] == (
        "crossfit.yaml+skills/dense.yaml+router/shared.yaml",
        "reference-skills/dense",
        ["data.batch_size=8"],
    )
    rate = f"optim.lr={math.sqrt(1000 / 16) * 0.06:.3g}"  # what skills/intrinsic has
    assert asked[1] == (
        "crossfit.yaml+skills/intrinsic.yaml+router/shared.yaml",
        "dimension-16",
        ["data.batch_size=8", "skills.dimension=16", rate],
    )
    text = (tmp_path / "d90.md").read_text()
    assert text in capsys.readouterr().out
    assert "Reference (`skills/dense`): 80.0 on the development rows; goal 72.0." in text
    assert "| 16 | 7 | 75.0 | 0.94 | 37.5 | 1.0 |" in text
    assert text.endswith("d90 = 16.\n")


def test_a_search_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SCRIPT.ConfigError, match=r"--low \(9\) must not be above --high \(8\)"):
        SCRIPT.main(["--low", "9", "--high", "8", "--out", str(tmp_path)])


@pytest.mark.slow
def test_a_search_of_real_runs_reads_what_has_ended(tmp_path: Path) -> None:
    gym = write_gym(tmp_path / "gym")
    config = write_config(tmp_path / "tiny.yaml", gym)
    given = ["-c", str(config), "--score", "1.0", "--low", "2", "--high", "4", "--steps", "1"]
    given += ["--out", str(tmp_path / "out"), "-k", "data.evaluate=[dev,test]"]
    assert SCRIPT.main(given) == 0
    text = (tmp_path / "out" / "d90.md").read_text()
    assert "d90 is above 4." in text
    times = {path: path.stat().st_mtime for path in tmp_path.glob("out/*/results.csv")}
    assert len(times) == 2
    assert SCRIPT.main(given) == 0
    assert times == {path: path.stat().st_mtime for path in times}

"""Comparisons that were made in parts become one table."""

import importlib
import math
import sys
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from helpers.gyms import TASKS, write_config, write_gym
from mttl.errors import MttlError

sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "join_scores.py")
KINDS = importlib.import_module("comparison.kinds")
TABLES = importlib.import_module("comparison.tables")
CONFIG = "optim: {lr: 0.1}\ndata: {cache_dir: %s}\n"
Score = TABLES.Score


def write_part(folder: Path, *scores: object, steps: int = 5, config: str = CONFIG) -> Path:
    """Write what a comparison keeps."""
    folder.mkdir()
    (folder / "config.yaml").write_text(config.replace("%s", str(folder)))
    (folder / "comparison.yaml").write_text(f"steps: {steps}\nfolds: 2\n")
    (folder / "scores.csv").write_text(TABLES.to_csv(scores))
    return folder


def part(method: str, seed: int, seen: float, unseen: float, fold: int = 1) -> list[object]:
    """Return the scores of a training with one task on either side."""
    return [
        Score(method, "", seed, "seen", "a", 100, seen, fold),
        Score(method, "all", seed, "unseen", "b", 100, unseen, fold),
    ]


def test_scores_of_other_rows_are_not_joined(tmp_path: Path) -> None:
    def scored(method: str, rows: str) -> object:
        return Score(method, "all", 1, "unseen", "b", 100, 40.0, 1, rows=rows)

    one = write_part(tmp_path / "one", scored("polytropon", "1234"))
    old = write_part(tmp_path / "old", scored("private", ""))  # of an earlier version
    other = write_part(tmp_path / "other", scored("shared", "5678"))
    out = ["--out", str(tmp_path / "both")]
    assert SCRIPT.main([str(one), str(old), *out]) == 0
    assert "all,1,unseen,b,100,40.0000,1,1234" in (tmp_path / "both" / "scores.csv").read_text()
    for words in ([str(tmp_path / "both"), str(other)], [str(one), "--beside", f"x={other}"]):
        with pytest.raises(MttlError, match=r"polytropon and shared.* have other rows.* of b"):
            SCRIPT.main([*words, *out])


def test_parts_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: Shared − Polytropon of seed 1 is −10 and +5, and no other seed has both."""
    one = write_part(tmp_path / "one", *part("polytropon", 1, 60, 40))
    other = write_part(
        tmp_path / "other",
        *part("shared", 1, 50, 45),
        *part("polytropon", 2, 70, 60),
        Score("polytropon", "router_only", 1, "unseen", "b", 100, 30.0, 1),
    )
    out = tmp_path / "both"
    assert SCRIPT.main([str(one), str(other), "--out", str(out)]) == 0
    text = (out / "table.md").read_text()
    assert "| `polytropon` | 2 | 65.0" in text
    assert "| `shared` | 1 | 50.0 | -10.0 | 45.0 | +5.0 |" in text
    assert "| `polytropon: router_only` | 1 |  |  | 30.0 | -10.0 |" in text
    assert text.strip() in capsys.readouterr().out
    assert "shared" in (out / "comparison.svg").read_text()
    # A way to adapt is a reference too; the one pair that it has with Shared is of seed 1.
    way = ["--reference", "polytropon: router_only", "--out", str(tmp_path / "way")]
    assert SCRIPT.main([str(one), str(other), *way]) == 0
    rows = (tmp_path / "way" / "table.md").read_text()
    assert "| `shared` | 1 | 50.0 | -10.0 | 45.0 | +15.0 |" in rows
    assert "| `polytropon: router_only` | 1 |  |  | 30.0 |  |" in rows
    assert "| seen | − `polytropon` | unseen | − `polytropon: router_only` |" in rows
    # What was joined can be joined again, with itself too.
    assert SCRIPT.main([str(out), str(one), "--out", str(out)]) == 0
    assert (out / "table.md").read_text() == text


def test_curves_are_joined_too(tmp_path: Path) -> None:
    def curve(seed: int, score: float) -> object:
        return Score("polytropon", "all-4", seed, "unseen", "b", 100, score)

    parts = [write_part(tmp_path / str(seed), curve(seed, 10.0 * seed)) for seed in (1, 2)]
    assert SCRIPT.main([*map(str, parts), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "examples.md").read_text()
    assert "| method | 4 rows |" in text
    assert "| `polytropon` | 15.0" in text
    assert (tmp_path / "out" / "examples.svg").is_file()
    for given in (["--reference", "shared"], ["--categories"], ["--beside", f"a={parts[0]}"]):
        with pytest.raises(SCRIPT.MttlError, match="curves over rows"):
            SCRIPT.main([*map(str, parts), *given, "--out", str(tmp_path / "out")])
    whole = write_part(tmp_path / "whole", *part("polytropon", 1, 60, 40))
    with pytest.raises(SCRIPT.MttlError, match="tables of methods, here of polytropon: join"):
        SCRIPT.main([str(parts[0]), str(whole), "--out", str(tmp_path / "out")])


def test_what_was_not_made_alike_is_refused(tmp_path: Path) -> None:
    one = write_part(tmp_path / "one", *part("polytropon", 1, 60, 40))
    longer = write_part(tmp_path / "longer", *part("shared", 1, 60, 40), steps=6)
    faster = write_part(
        tmp_path / "faster", *part("shared", 1, 60, 40), config=CONFIG.replace("0.1", "0.2")
    )
    begun = write_part(
        tmp_path / "begun", *part("shared", 1, 60, 40), config=CONFIG + "run: {start: runs/a}\n"
    )
    for other, message in (
        (begun, r"not made alike: run\.start \("),
        (longer, r"not made alike: steps \(5 before, 6 now\)"),
        (faster, r"not made alike: optim\.lr \(0\.1 and 0\.2\)"),
    ):
        with pytest.raises(SCRIPT.MttlError, match=message):
            SCRIPT.main([str(one), str(other), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_comparison_made_otherwise_stands_beside(tmp_path: Path) -> None:
    """By hand: Polytropon made faster is 5 above on the seen task and 10 on the unseen one."""
    one = write_part(tmp_path / "one", *part("polytropon", 1, 60, 40))
    faster = write_part(
        tmp_path / "faster", *part("polytropon", 1, 65, 50), config=CONFIG.replace("0.1", "0.2")
    )
    out = tmp_path / "out"
    assert SCRIPT.main([str(one), "--beside", f"fast={faster}", "--out", str(out)]) == 0
    text = (out / "table.md").read_text()
    assert "Methods with `, fast` differ from the others in optim.lr (0.1 and 0.2)." in text
    assert "| `polytropon, fast` | 1 | 65.0 | +5.0 | 50.0 | +10.0 |" in text
    assert "65" not in (out / "scores.csv").read_text()
    strange = write_part(
        tmp_path / "strange", Score("shared", "all", 1, "unseen", "c", 100, 1.0, 1)
    )
    for given, message in (
        (f"strange={strange}", "is a comparison of other tasks"),
        (str(strange), "must have the form NAME=FOLDER"),
    ):
        with pytest.raises(SCRIPT.MttlError, match=message):
            SCRIPT.main([str(one), "--beside", given, "--out", str(out)])
    twice = ["--beside", f"fast={faster}", "--beside", f"fast={strange}"]
    with pytest.raises(SCRIPT.MttlError, match="--beside fast: two folders have this name"):
        SCRIPT.main([str(one), *twice, "--out", str(out)])


def test_two_scores_of_one_run_are_refused(tmp_path: Path) -> None:
    one = write_part(tmp_path / "one", *part("polytropon", 1, 60, 40))
    other = write_part(tmp_path / "other", *part("polytropon", 1, 60, 41))
    with pytest.raises(SCRIPT.MttlError, match=r"different scores of polytropon, seed 1, task 'b'"):
        SCRIPT.main([str(one), str(other), "--out", str(tmp_path / "out")])


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(SCRIPT.MttlError, match=r"it has no config\.yaml, comparison\.yaml"):
        SCRIPT.main([str(tmp_path), "--out", str(tmp_path / "out")])
    one = write_part(tmp_path / "one", *part("polytropon", 1, 60, 40))
    with pytest.raises(SCRIPT.MttlError, match=r"no score of it; there are polytropon"):
        SCRIPT.main([str(one), "--reference", "lora", "--out", str(tmp_path / "out")])
    damaged = (one / "scores.csv").read_text().replace("polytropon,,1,", "polytropon,,1.5,")
    (one / "scores.csv").write_text(damaged)
    with pytest.raises(SCRIPT.MttlError, match=r"1\.5 must be a whole number"):
        SCRIPT.main([str(one), "--out", str(tmp_path / "out")])


def test_unseen_tasks_by_category(tmp_path: Path) -> None:
    """By hand: the first category's tasks have 10 and 30."""
    gym = write_gym(tmp_path / "gym")
    names = list(TASKS)[:3]
    kinds = ["noun/plural", "noun/plural", "verb/past"]
    lines = [f"{name},EM,{kind}" for name, kind in zip(names, kinds, strict=True)]
    (gym / "TASKS.csv").write_text("\n".join(["task,metric,category", *lines]) + "\n")
    scores = [
        Score("polytropon", "all", 1, "unseen", name, 100, score)
        for name, score in zip(names, (10.0, 30.0, 50.0), strict=True)
    ]
    config = write_config(tmp_path / "tiny.yaml", gym).read_text()
    folder = write_part(tmp_path / "one", *scores, config=config)
    assert SCRIPT.main([str(folder), "--categories", "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| noun/plural | 2 | 20.0 |" in text
    assert "| verb/past | 1 | 50.0 |" in text
    strange = Score("polytropon", "all", 1, "unseen", "strange", 100, 1.0, 1)
    other = write_part(tmp_path / "other", *scores, strange, config=config)
    with pytest.raises(SCRIPT.MttlError, match="task 'strange' is not in the gym"):
        SCRIPT.main([str(other), "--categories", "--out", str(tmp_path / "out")])


def kind_line(kind: str, step: float, settings: str = "") -> object:
    """Return what a kind costs, which cannot be folded; its score has no interval."""
    nan, mean = math.nan, TABLES.Mean(30.0, math.nan, math.nan)
    sizes = {"trained": 1200, "trained_share": 12.5, "n_bytes": 2048, "mergeable": False}
    folded = {"changed": nan, "rank": nan, "full_rank": nan}
    costs = {"step": step, "memory": 1.25, "speed": 0.5, "seen": mean, "unseen": mean}
    return KINDS.KindLine(kind=kind, settings=settings, n_seeds=1, **sizes, **folded, **costs)


def test_costs_of_kinds_are_joined_too(tmp_path: Path) -> None:
    one = write_part(tmp_path / "one", *part("lora", 1, 60, 40))
    other = write_part(tmp_path / "other", *part("ia3", 1, 50, 30))
    (one / "kinds.json").write_text(
        KINDS.kinds_json([kind_line("lora", 1.5, "skills.rank=3"), kind_line("ia3", 9.0)])
    )
    (other / "kinds.json").write_text(KINDS.kinds_json([kind_line("ia3", 1.125)]))
    out = tmp_path / "out"
    assert SCRIPT.main([str(one), str(other), "--reference", "lora", "--out", str(out)]) == 0
    lines = (out / "kinds.md").read_text().splitlines()
    assert lines[2:] == [
        "| `lora` | `skills.rank=3` | 1,200 | 12.5 |  |  | 2 | 1.50 | 1.25 | 0.50 | no |",
        "| `ia3` |  | 1,200 | 12.5 |  |  | 2 | 1.12 | 1.25 | 0.50 | no |",
    ]
    assert "trained, % of the backbone" in (out / "kinds.svg").read_text()
    again = tmp_path / "again"
    assert SCRIPT.main([str(out), "--reference", "lora", "--out", str(again)]) == 0
    assert (again / "kinds.md").read_text() == (out / "kinds.md").read_text()


def test_what_kinds_reach_is_of_all_parts_and_of_their_own_way(tmp_path: Path) -> None:
    """By hand: seeds of 60 and 70 on seen tasks, of 40 and 50 on unseen ones, are 65 and 45."""
    one = write_part(tmp_path / "one", *part("lora", 1, 60, 40))
    further = Score("lora", "zero_shot", 1, "unseen", "b", 100, 0.0, 1)
    other = write_part(tmp_path / "other", *part("lora", 2, 70, 50), further)
    for folder in (one, other):
        lines = [kind_line("lora", 1.5), kind_line("ia3", 1.5)]
        (folder / "kinds.json").write_text(KINDS.kinds_json(lines))
    out = tmp_path / "out"
    assert SCRIPT.main([str(one), str(other), "--reference", "lora", "--out", str(out)]) == 0
    joined, unknown = KINDS.read_kinds(out / "kinds.json")
    assert (joined.n_seeds, joined.seen.mean, joined.unseen.mean) == (2, 65, 45)
    assert not math.isnan(joined.seen.low)
    assert (unknown.n_seeds, unknown.seen.mean) == (1, 30)  # no scores of it were joined


def test_one_name_stands_for_one_method(tmp_path: Path) -> None:
    folders = []
    for seed, rank in ((1, 4), (2, 4), (3, 64)):
        folder = write_part(tmp_path / str(seed), *part("mine", seed, 60, 40))
        (folder / "methods").mkdir()
        (folder / "methods" / "mine.yaml").write_text(f"skills: {{rank: {rank}}}\n")
        folders.append(str(folder))
    out = tmp_path / "out"
    assert SCRIPT.main([*folders[:2], "--reference", "mine", "--out", str(out)]) == 0
    with pytest.raises(SCRIPT.MttlError, match=r"two methods: skills\.rank \(4 before, 64 now\)"):
        SCRIPT.main([str(out), folders[2], "--reference", "mine", "--out", str(out)])


@pytest.mark.parametrize("text", ["{}", "[3]", '[{"kind": "lora"}]'])
def test_damaged_costs_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "kinds.json").write_text(text)
    with pytest.raises(MttlError, match=r"kinds\.json"):
        KINDS.read_kinds(tmp_path / "kinds.json")

"""Dialogues about facts: labels, splits and metrics of the gym."""

import json
import math
import re
from pathlib import Path

import pytest

from helpers.command import ROOT, load_recipe
from helpers.printed import commands, text
from mttl.__main__ import main
from mttl.commands import build
from mttl.metrics.crossfit import build_metric, score_answers
from mttl.runtime.command import run_command
from mttl.tasks.folder import Gym

pytest.importorskip("babel", reason="pip install -e '.[gym]'")
SCRIPT = load_recipe(ROOT / "scripts" / "gyms" / "build_dialogue.py")
KNOWLEDGE = "The currency of Peru is the Peruvian Sol. Clocks in Peru show UTC-5."
QUESTION = "Wow! How do people pay there?"
PAIR = "q2 questions=dialogue_gym.questions:Asking answers=dialogue_gym.questions:Reading"


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, list[dict]]:
    out = tmp_path_factory.mktemp("gym") / "one"
    SCRIPT.main(["--out", str(out), "--rows", "600", "--test-rows", "100"])
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in out.glob("*.jsonl")
    }


def test_equal_options_give_equal_files(rows, tmp_path: Path) -> None:
    SCRIPT.main(["--out", str(tmp_path / "two"), "--rows", "600", "--test-rows", "100"])
    for name, own in rows.items():
        lines = (tmp_path / "two" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == own


def test_the_checker_agrees_with_every_label(rows) -> None:
    from dialogue_gym.claims import Verdict, judge

    for row in (row for own in rows.values() for row in own):
        found = judge(row["response"], row["knowledge"], row["history"][-1])
        assert found == Verdict(row["label"], row["label"] != "uncooperative")
    labels = {name: {row["label"] for row in own} for name, own in rows.items()}
    assert labels["test"] == labels["expert_train"] == {"faithful"}
    assert labels["anti_expert_train"] == {"hallucinated"}
    assert len(labels["talk_train"]) == 4
    # Of 600 rows with a share of 0.4, the standard error is 0.02.
    share = sum(row["label"] == "hallucinated" for row in rows["talk_train"]) / 600
    assert share == pytest.approx(0.4, abs=0.06)


def test_entities_of_the_splits_are_disjoint(rows) -> None:
    from dialogue_gym.claims import claims

    found: dict[str, set] = {"train": set(), "dev": set(), "test": set()}
    for name, own in rows.items():
        for row in own:
            found[name.split("_")[-1]] |= {one.entity for one in claims(row["knowledge"])}
    assert None not in set().union(*found.values())
    assert sum(map(len, found.values())) == len(set().union(*found.values()))


@pytest.mark.parametrize(
    ("answer", "label", "answers"),
    [
        ("They pay with the Peruvian Sol.", "faithful", True),
        ("The currency of Peru is the Peruvian Sol.", "copied", True),
        ("Shops in Peru take the Peruvian Sol.", "faithful", True),
        ("Shops in Chile take the Peruvian Sol.", "hallucinated", True),
        ("They pay with the Peruvian Sun.", "hallucinated", True),
        ("They pay with the Peruvian Sol. They speak Spanish.", "hallucinated", True),
        ("They are on UTC-5.", "faithful", False),
        ("They pay the Peruvian Sol.", "malformed", False),
        ("They pay with the Peruvian Sol. It is", "malformed", True),
        ("I do not know.", "uncooperative", False),
        ("", "malformed", False),
    ],
)
def test_verdicts(answer, label, answers) -> None:
    from dialogue_gym.claims import judge

    assert judge(answer, KNOWLEDGE, QUESTION) == (label, answers)
    row = {"columns": {"knowledge": KNOWLEDGE, "history": ["Hello", QUESTION]}}
    expected = {
        "Faithful": label in ("faithful", "copied"),
        "Copied": label == "copied",
        "Hallucinated": label == "hallucinated",
        "Answering": answers,
    }
    import dialogue_gym.metrics  # noqa: F401

    for name, share in expected.items():
        assert score_answers(f"dialogue_gym.metrics:{name}", [answer], [[""]], [row]) == share


def test_q2_with_templates_separates_hallucinated_answers(rows) -> None:
    import dialogue_gym.questions  # noqa: F401

    metric = build_metric(PAIR)
    for row in rows["talk_train"]:
        score = metric.row(row["response"], [row["knowledge"]])
        if row["label"] == "uncooperative":
            assert math.isnan(score)  # there is nothing to ask
        else:
            assert (score == 1) is (row["label"] != "hallucinated")


def test_the_tasks_can_be_built(tmp_path: Path) -> None:
    out = tmp_path / "gym"
    SCRIPT.main(["--out", str(out), "--rows", "40", "--test-rows", "10"])
    given = ["--config", str(out / "tasks.yaml"), "--out", str(out / "built"), "--workers", "1"]
    assert build.main(given) == 0
    names = {"talk", "expert", "anti_expert", "control", "channel", "lm"}
    assert {*Gym(out / "built").tasks()} == names


@pytest.mark.slow
def test_the_page_runs_from_data_to_the_curve(tmp_path: Path, monkeypatch) -> None:
    """All commands of the page, with small data and two steps per training."""
    monkeypatch.chdir(tmp_path)
    page = text("docs/howto/faithful_answers.md")
    (sweep,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    few = re.sub(r"weights: \[.*?\]", "weights: [0.1]", sweep)
    Path("sweep.yaml").write_text(few + "generation: {max_new_tokens: 8}\n", encoding="utf-8")
    for command in commands(page):
        name = Path(command.script).stem
        words = [re.sub(r"max_steps=\d+", "max_steps=2", word) for word in command.words]
        if name == "build_dialogue":
            SCRIPT.main([*words, "--rows", "40", "--test-rows", "6"])
            continue
        small = ["trainer.val_check_interval=2", "data.max_eval_rows=2"]
        words += small if name == "train" else ["--max-tokens", "8"] * (name == "predict")
        full = [name.replace("_", "-"), *words]
        assert run_command(lambda full=full: main(full)) == 0, full
    header, *rows = Path("runs/sweep/scores.csv").read_text().splitlines()
    assert "Faithful" in header
    assert len(rows) == 4  # the base and three methods
    assert [*Path("runs/sweep").glob("*.svg")]

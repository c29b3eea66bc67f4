"""Scores, curves, answers and adapted tasks, as a run left them."""

import json
from pathlib import Path

import numpy as np
import pytest

from mttl.analysis.explore.run_facts import (
    MOST_ANSWERS,
    MOST_POINTS,
    read_adapted,
    read_answers,
    read_films,
    read_run_curves,
    read_scores,
)
from mttl.io.errors import CheckpointError

HEAD = "task,split,sample,seed,metric,score,n\n"


def score(split: str, metric: str, score: float, **baselines: float) -> dict[str, object]:
    return {"split": split, "metric": metric, "score": score, "baselines": baselines}


def test_scores_stand_beside_baselines_and_are_means_over_samples(tmp_path: Path) -> None:
    assert read_scores(tmp_path) == {}
    rows = "a,dev,1,0,EM,0.2,5\na,test,1,0,EM,0.5,5\na,test,2,0,EM,0.7,5\nb,test,1,0,F1,nan,5\n"
    (tmp_path / "results.csv").write_text(HEAD + rows)
    (tmp_path / "baselines.csv").write_text(f"baseline,{HEAD}copy,a,test,1,0,EM,0.1,5\n")
    found = read_scores(tmp_path)
    assert found["a"] == [score("test", "EM", 0.6, copy=0.1), score("dev", "EM", 0.2)]
    assert found["b"] == [score("test", "F1", 0.0)]
    (tmp_path / "results.csv").write_text(HEAD + "a,dev,1,0,EM,good,5\n")
    with pytest.raises(CheckpointError, match="a score"):
        read_scores(tmp_path)


def test_policies_have_scores_by_choice_of_actions_and_films(tmp_path: Path) -> None:
    found = {("greedy", "success"): 0.5, ("greedy", "steps"): 9.5, ("sampled", "success"): 0.25}
    rows = [f"a,evaluation,{how},1,{what},{x},4\n" for (how, what), x in found.items()]
    (tmp_path / "results.csv").write_text(HEAD + "".join(rows))
    assert read_scores(tmp_path)["a"] == [
        score("greedy actions", "success rate", 0.5),
        score("greedy actions", "steps of an episode", 9.5),
        score("sampled actions", "success rate", 0.25),
    ]
    assert read_films(tmp_path, "a") == []
    films = tmp_path / "plots" / "films"
    films.mkdir(parents=True)
    for name in ("a.gif", "a-3.gif", "ab.gif"):
        (films / name).write_bytes(b"GIF")
    assert read_films(tmp_path, "a") == [{"name": name, "gif": "R0lG"} for name in ("a-3", "a")]


def test_curves_are_thinned_out_with_both_ends(tmp_path: Path) -> None:
    assert read_run_curves(tmp_path, ["a"]) == ({}, {"a": {}})
    lines = [f"{step},{step / 10},,\n" for step in range(500)] + ["500,nan,0.5,0.25\n"]
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss,val/score,val/a/score\n" + "".join(lines))
    whole, own = read_run_curves(tmp_path, ["a", "b"])
    steps, values = whole["train/loss"]
    assert (len(steps), steps[0], steps[-1], values[-1]) == (MOST_POINTS, 0, 499, 49.9)
    assert whole["val/score"] == ([500], [0.5])
    assert own == {"a": {"score": ([500], [0.25])}, "b": {}}


def test_right_and_wrong_answers_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    assert read_answers(tmp_path, "a") is None
    folder = tmp_path / "predictions"
    folder.mkdir()
    rows = [
        {"sample": 1, "input": "x" * 999, "references": ["1", "one"], "prediction": answer}
        for answer in ("two", "one", "one") * 20
    ]
    path = folder / "a_dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_answers(tmp_path, "a")
    assert found is not None
    assert (found["split"], found["n_right"], found["n_rows"]) == ("dev", 40, 60)
    assert [row[3] for row in found["shown"]].count(True) == MOST_ANSWERS
    assert [row[3] for row in found["shown"]].count(False) == MOST_ANSWERS
    assert found["shown"][0][0].endswith("x…")
    (folder / "a_test.jsonl").write_text('{"input": "x\n')
    with pytest.raises(CheckpointError, match=r"a_test\.jsonl', line 1"):  # test rows come first
        read_answers(tmp_path, "a")


def test_adapted_tasks_and_the_row_that_was_kept(tmp_path: Path) -> None:
    assert read_adapted(tmp_path) == []
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "routing.npz").touch()
    rows = np.linspace(0, 1, 4 * 6).reshape(4, 2, 1, 3)
    for mode in ("all", "router_only"):
        place = tmp_path / f"adapt-{mode}" / "models" / "new-13-1"
        (place / "plots").mkdir(parents=True)
        (place / "results.csv").write_text(HEAD + "new,test,13,1,EM,0.5,5\n")
        np.savez(
            place / "plots" / "routing_history.npz",
            steps=np.array([0, 5, 10, 15]),
            weights=rows,
            score_steps=np.array([0, 10, 15]),
            scores=np.array([0.1, 0.4, 0.4]),
        )
    first, second = read_adapted(tmp_path)
    assert (first[0]["name"], second[0]["name"]) == ("new-13-1, all", "new-13-1, router_only")
    assert first[0]["scores"] == [score("test", "EM", 0.5)]
    assert first[0]["kept"] == 2  # a later score that is not better does not count
    np.testing.assert_array_equal(first[1], rows[:, :, 0])

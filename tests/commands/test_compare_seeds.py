"""Scores of several runs in one table."""

from pathlib import Path

from mttl.commands import compare as SCRIPT

HEADER = "task,split,sample,seed,metric,score,n\n"


def write_run(folder: Path, *rows: tuple[str, str, float], lr: float = 0.1) -> Path:
    """Write the files of a run with (task, sample, score) on the test split; its name is a seed."""
    folder.mkdir()
    text = f"run: {{name: a{folder.name}, seed: {folder.name}}}\noptim: {{lr: {lr}}}\n"
    (folder / "config.yaml").write_text(text)
    lines = [f"{task},test,{sample},1,EM,{score},4\n" for task, sample, score in rows]
    (folder / "results.csv").write_text(HEADER + "".join(lines))
    (folder / "baselines.csv").write_text(
        "baseline," + HEADER + "".join(f"{name},{line}" for name in BASELINES for line in lines)
    )
    return folder


BASELINES = ("copy", "majority")


def test_samples_are_averaged_and_runs_compared(tmp_path, capsys) -> None:
    """By hand: samples 10 and 30 give 20; with a run of 40 the mean is 30, the deviation √200."""
    first = write_run(tmp_path / "1", ("a", "100", 0.1), ("a", "13", 0.3), ("mean", "all", 0.2))
    second = write_run(tmp_path / "2", ("a", "100", 0.4), ("mean", "all", 0.4))
    assert SCRIPT.main([str(first), str(second)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| task | test | copy | majority |"
    assert lines[4:] == [
        "| `a` | 30.0 ± 14.1 | 20.0 | 20.0 |",
        "| **mean** | 30.0 ± 14.1 | 20.0 | 20.0 |",
    ]
    assert SCRIPT.main([str(first)]) == 0
    assert "| `a` | 20.0 | 20.0 | 20.0 |" in capsys.readouterr().out  # without a deviation


def test_a_run_that_has_not_ended_is_named(tmp_path: Path, refused) -> None:
    assert "is not a run, because it has no config.yaml" in refused(SCRIPT.main, tmp_path)
    run = write_run(tmp_path / "1", ("a", "100", 0.5))
    (run / "results.csv").unlink()
    assert "1' has not finished; finish it with --resume" in refused(SCRIPT.main, run)
    (run / "skills").mkdir()
    (run / "skills" / "meta.json").touch()
    assert "1' has no results.csv, because nothing was scored" in refused(SCRIPT.main, run)


def test_undefined_scores_are_left_out_and_counted(tmp_path: Path, capsys) -> None:
    """By hand: 30 and NaN of samples is 15, as in results.csv; 10 and 20 are 15.0 ± 7.1."""
    nan = float("nan")
    none = (("b", "1", nan), ("c", "2", nan))
    runs = [
        write_run(tmp_path / "1", ("a", "1", 0.1), none[0], ("c", "1", 0.3), none[1]),
        write_run(tmp_path / "2", ("a", "1", 0.2), none[0], ("c", "1", nan), none[1]),
    ]
    assert SCRIPT.main([*map(str, runs)]) == 0
    cells = [line.split(" | ")[1] for line in capsys.readouterr().out.splitlines()[4:7]]
    assert cells == ["15.0 ± 7.1", "NaN", "15.0 (1 of 2)"]


def test_policies_have_a_column_for_each_choice_of_actions(tmp_path, capsys, refused) -> None:
    """A finished BabyAI run has neither baselines nor a test split; steps are not percentages."""
    run = write_run(tmp_path / "1", ("mean", "all", 0.5))
    (run / "baselines.csv").unlink()
    rows = [("greedy", "success", 0.5), ("greedy", "steps", 9.0), ("sampled", "success", 0.25)]
    lines = [f"GoTo,evaluation,{chosen},1,{metric},{score},4\n" for chosen, metric, score in rows]
    (run / "results.csv").write_text(HEADER + "".join(lines))
    assert SCRIPT.main([str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| task | greedy | sampled |"
    assert lines[4] == "| `GoTo` | 50.0 | 25.0 |"
    (run / "results.csv").write_text(HEADER + "GoTo,evaluation,sampled,1,success,0.25,4\n")
    told = refused(SCRIPT.main, "--runs", f"mine={run}", "--out", tmp_path / "out")
    assert "results.csv' has no test scores" in told


def test_runs_that_differ_in_more_than_their_seed_are_refused(tmp_path: Path, refused) -> None:
    first, other = (write_run(tmp_path / n, ("a", "1", 0.5), lr=int(n)) for n in ("1", "2"))
    told = refused(SCRIPT.main, first, other)
    assert "differ in more than their seed: optim.lr (1 and 2). Summarise" in told
    assert "' have the same seed, 1; remove one" in refused(SCRIPT.main, first, first)
    (other / "config.yaml").unlink()
    assert "is not a run, because it has no config.yaml" in refused(SCRIPT.main, first, other)

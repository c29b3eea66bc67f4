"""The adaptation command end to end, on a tiny run and new tasks."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from helpers.command import note_again
from helpers.new_tasks import train_source
from mttl.adaptation import shard as workers
from mttl.adaptation.new_tasks import Adaptation
from mttl.commands import adapt
from mttl.config.load import load_config

STEPS = ("adapt.max_steps=2", "adapt.eval_every=2", "adapt.batch_size=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    train_source(folder)
    return folder


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    config, source = folder / "tiny.yaml", folder / "runs" / "source"
    given = ["-c", str(config), "--from", str(source), "--out", str(out), "-k", *STEPS]
    return [*given, *more]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The results of a start that nothing interrupts."""
    assert adapt.main(arguments(folder, folder / "whole")) == 0
    return folder / "whole"


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_second_start_repeats_no_finished_job(folder, whole, tmp_path, monkeypatch) -> None:
    """Killed in the third of four jobs; the second start runs the last two."""
    run_job, started = Adaptation.run_job, []

    def interrupted(*given, **more):
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(given[1])
        return run_job(*given, **more)

    monkeypatch.setattr(Adaptation, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adapt.main(arguments(folder, tmp_path))
    first = rows(tmp_path)
    assert len(first) == 2
    monkeypatch.setattr(Adaptation, "run_job", run_job)
    assert adapt.main(arguments(folder, tmp_path)) == 0
    assert rows(tmp_path)[:2] == first
    assert len(rows(tmp_path)) == 4
    assert rows(whole) == rows(tmp_path)


def test_other_settings_are_not_mixed_in(folder, tmp_path, refused) -> None:
    one = ["--tasks", "first"]
    assert adapt.main([*arguments(folder, tmp_path, "adapt.mode=zero_shot"), *one]) == 0
    given = [*arguments(folder, tmp_path, "adapt.mode=zero_shot", "adapt.lr=0.5"), *one]
    assert "adapt.lr (0.001 before, 0.5 now)" in refused(adapt.main, *given)
    more = arguments(folder, tmp_path, "adapt.mode=zero_shot", "adapt.seeds=[13, 14]")
    assert adapt.main([*more, *one]) == 0
    assert len(rows(tmp_path)) == 4
    # The same inventory elsewhere, and then another one there.
    source = shutil.copytree(folder / "runs" / "source", tmp_path / "source")
    elsewhere = [*more, *one, "--from", str(source)]
    assert adapt.main(elsewhere) == 0
    before, path = (tmp_path / "results.jsonl").read_bytes(), source / "skills/skills.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    note_again(source / "skills")
    told = refused(adapt.main, *elsewhere)
    assert "are of other skills" in told
    assert "--out" in told
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("optim.lr=0.5", "'optim.lr' is a training setting that adaptation does not read. "),
        ("optim.schedule=cosine", "' is a training setting that adaptation does not read. "),
        ("run.seed=14", "Set adapt.seeds"),
        ("data.prefix=code", "'data.prefix' (\"code\") cannot be set in adaptation: the run"),
        ("data.max_input_length=9", "was trained with 24"),
    ],
)
def test_what_adaptation_does_not_read_is_refused(folder, tmp_path, refused, setting, told) -> None:
    assert told in refused(adapt.main, *arguments(folder, tmp_path / "out", setting))
    assert not (tmp_path / "out").exists()


def test_how_rows_look_and_what_the_run_was_built_from_are_those_of_the_run(
    folder, tmp_path, refused
) -> None:
    """Whatever the files of the command say; the same on the command line is allowed."""
    trained = load_config([str(folder / "runs" / "source" / "config.yaml")])
    more = trained.skills.n_skills + 1
    wrong = arguments(folder, tmp_path, f"skills.n_skills={more}")
    assert f"was trained with {more - 1}. Remove it" in refused(adapt.main, *wrong)
    other = tmp_path / "other.yaml"
    other.write_text(f"data: {{prefix: code, max_input_length: 9}}\nskills: {{n_skills: {more}}}\n")
    same = ("data.max_input_length=24", "data.prefix=auto", f"skills.n_skills={more - 1}")
    one = ("--tasks", "first", "--samples", "13")
    assert adapt.main(arguments(folder, tmp_path / "out", *same, *one)) == 0
    given = arguments(folder, tmp_path / "file", *one)
    given[1] += f"+{other}"
    assert adapt.main(given) == 0
    for name in ("out", "file"):
        noted = load_config([str(tmp_path / name / "config.yaml")])
        assert (noted.data.prefix, noted.data.max_input_length) == ("name", 24)
        assert (noted.skills, noted.router, noted.backbone) == (
            trained.skills,
            trained.router,
            trained.backbone,
        )
    assert rows(tmp_path / "file") == rows(tmp_path / "out")


def test_results_stand_beside_the_skills(folder: Path, tmp_path: Path) -> None:
    """Saving replaces the folder skills/ and all that is in it."""
    shutil.copytree(folder / "runs" / "source" / "skills", tmp_path / "skills")
    config = str(folder / "tiny.yaml")
    given = ["-c", config, "--tasks", "first", "-k", *STEPS, "adapt.mode=zero_shot"]
    assert adapt.main([*given, "--from", str(tmp_path / "skills")]) == 0
    assert (tmp_path / "adapt-zero_shot" / "results.jsonl").is_file()
    assert not list((tmp_path / "skills").glob("adapt*"))


def test_a_reference_is_read_and_left_as_it_is(folder, tmp_path, capsys, refused) -> None:
    given = [*arguments(folder, tmp_path / "out", "adapt.mode=zero_shot"), "--tasks", "first"]
    assert adapt.main(given) == 0
    other = tmp_path / "other" / "results.jsonl"
    other.parent.mkdir()
    other.write_text((tmp_path / "out" / "results.jsonl").read_text() + '{"task": "tw')
    before = other.read_bytes()
    capsys.readouterr()
    assert adapt.main([*given, "--reference", str(other.parent)]) == 0
    assert other.read_bytes() == before
    assert "elative gain" in capsys.readouterr().out
    other.write_text("damaged\n")
    error = refused(adapt.main, *given, "--reference", str(other.parent))
    assert "results.jsonl', line 1 is damaged" in error


def test_mistakes_are_answered(folder, tmp_path, refused) -> None:
    for more, message in (
        (("--tasks", "dev"), "selects no task (test and dev are sides of the partition '"),
        (("--tasks", ","), "Give a file of new tasks (--tasks FILE.yaml) or names separated by"),
        (("--samples", "13;7"), "' must be numbers separated by commas, such as 13,21"),
        (("--shard", "3/2"), "argument --shard"),
        (("--shard", "two"), "argument --shard"),
        (("--workers", "0"), "argument --workers"),
    ):
        assert message in refused(adapt.main, *arguments(folder, tmp_path), *more)
    assert not (tmp_path / "results.jsonl").exists()


def test_missing_splits_are_answered(folder, tmp_path, refused) -> None:
    gym = tmp_path / "gym"
    shutil.copytree(folder / "gym", gym)
    given = arguments(folder, tmp_path / "out", f"data.dir={gym}")
    training = gym / "first" / "first_16_13_train.tsv"
    (gym / "first" / "first_16_100_test.tsv").unlink()
    assert "'first' has no test file for sample 100" in refused(adapt.main, *given)
    training.unlink()
    assert "'first' has no train file for sample 13" in refused(adapt.main, *given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_parts_and_workers_end_with_the_results_of_one_process(
    folder, whole, tmp_path, capsys, monkeypatch, inside
) -> None:
    """The first of two parts runs alone, then two workers; processes if slow."""

    def start(command: list[str], **more: object) -> SimpleNamespace:
        assert command[1:4] == ["-m", "mttl", "adapt"]
        with redirect_stdout(StringIO()):
            status = adapt.main(command[4:])
        return SimpleNamespace(wait=lambda: status, terminate=lambda: None)

    if inside:
        monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    parts = arguments(folder, tmp_path / "parts")
    capsys.readouterr()
    assert adapt.main([*parts, "--shard", "1/2"]) == 0
    assert "2 of 4 jobs finished" in " ".join(capsys.readouterr().out.split())
    assert adapt.main([*parts, "--workers", "2"]) == 0
    assert "have ended" not in capsys.readouterr().out
    files = sorted((tmp_path / "parts").glob("results*.jsonl"))
    assert [path.name for path in files] == ["results-1-of-2.jsonl", "results-2-of-2.jsonl"]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted((whole / "results.jsonl").read_text().splitlines())

"""A custom router: trained, adapted, searched, compared, plotted, and asked."""

import csv
import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mttl
from helpers.command import ROOT, train
from helpers.gyms import TINY_LLAMA, TINY_T5, write_config, write_gym
from helpers.printed import commands, text
from mttl.__main__ import ALL, main
from mttl.adaptation.plan import FewShotResult
from mttl.assembly.model import load_run
from mttl.commands import compare
from mttl.commands.comparison import stages
from mttl.commands.comparison.methods import custom_methods
from mttl.config.load import load_config
from mttl.io.errors import CheckpointError, MttlError
from mttl.io.record import as_row
from mttl.peft_format.poly import poly_checkpoint
from mttl.plugins.classes import TRUST
from mttl.runtime.command import USER_MISTAKE, run_command

NEARBY, READING = (f"examples/{name}_router.yaml" for name in ("nearby", "reading"))
QUICK = ("trainer.max_steps=2", "trainer.val_check_interval=2")
ADAPT = ("adapt.max_steps=1", "adapt.eval_every=1")
MODULES = ("nearby_router.py", "reading_router.py", "nearby_router")


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test without the classes, in the folder of the examples."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(TRUST, "")
    forget()


def forget() -> None:
    """Forget the classes, as a new process does."""
    for name in [name for name in sys.modules if name.endswith(MODULES)]:
        del sys.modules[name]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure a gym of which one task is left out of training, and which describes its tasks."""
    described = {"description": "letters {}", "category": "words"}
    gym = write_gym(tmp_path / "gym", unseen=["copy"], **described)
    return write_config(tmp_path / "tiny.yaml", gym)


def command(name: str, *arguments: str) -> int:
    return run_command(lambda: main([name, *arguments]))


PAGES = {
    name: text(f"docs/howto/{name}.md")
    for name in ("add_a_router", "add_a_skill", "compare_methods")
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)


def printed(page: str) -> list[list[str]]:
    """Return the commands of a page as words, without mttl."""
    found = [one for one in commands(PAGES[page]) if one.script.startswith("mttl/")]
    return [[Path(one.script).stem.replace("_", "-"), *one.words] for one in found]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files that the pages show into an empty folder, and go there."""
    router, *_ = blocks("add_a_router", "python")
    (tmp_path / "my_router.py").write_text(router)
    (tmp_path / "my_router.yaml").write_text(blocks("add_a_router", "yaml")[0])
    (tmp_path / "my_parts.py").write_text("\n".join(blocks("add_a_skill", "python")))
    (tmp_path / "my_parts.yaml").write_text(blocks("add_a_skill", "yaml")[0])
    (tmp_path / "words.tsv").write_text("input\nwalk\n")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    small = {"train": ["verb_past", "noun_plural"], "dev": [], "test": ["third_past"]}
    (tmp_path / "small.json").write_text(json.dumps(small))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ["data.partition=small.json", "data.max_eval_rows=2"]
SHORTER = {"train": ["-k", *SMALL, *QUICK], "adapt": ["-k", *SMALL, *ADAPT]}


def test_the_commands_of_the_pages_are_understood(reader: Path) -> None:
    for words in (words for page in PAGES for words in printed(page)):
        module = importlib.import_module(f"mttl.commands.{ALL[words[0]]}")
        options = module.main.parse(words[1:])
        if words[0] in ("train", "adapt"):
            config = load_config(options.config, options.override)
            assert type(config.router).__name__ in ("SoftmaxRouter", "PolytroponRouter")
        if words[0] == "compare" and options.method:
            for method in custom_methods(options.method, []).values():
                load_config(f"crossfit.yaml+{method.fragment}")


def test_the_router_of_the_page_is_short() -> None:
    assert 12 <= len(blocks("add_a_router", "python")[0].splitlines()) <= 30


@pytest.mark.every(2)
@pytest.mark.parametrize("page", ["add_a_router", "add_a_skill"])
def test_the_page_works_from_an_empty_folder(reader: Path, page: str, capfd) -> None:
    """Its commands at a small size, each like a process that has not seen the classes."""
    ran = [words for words in printed(page) if words[0] not in ("compare", "explore")]
    assert ran[0][0] == "train"
    for words in ran:
        for name in [name for name in sys.modules if "my_router" in name or "my_parts" in name]:
            del sys.modules[name]
        assert command(*words, *SHORTER.get(words[0], [])) == 0, words
    if page == "add_a_router":
        assert "\nwalk\t" in capfd.readouterr().out
    else:
        results = (reader / "runs" / "my_parts" / "results.csv").read_text()
        assert "my_parts.py:FirstLetter" in results
        assert (reader / "models" / "past" / "config.json").is_file()


@pytest.mark.slow
def test_every_command_accepts_it(config: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    both = f"{config}+{NEARBY}"
    run = train(both, "mine", *QUICK)
    meta = json.loads((run.skills / "meta.json").read_text())
    assert meta["settings"]["router"]["kind"] == "./examples/nearby_router.py:NearbyRouter"
    assert meta["settings"]["router"]["temperature"] == 0.5

    # A new task: adapted, kept, and asked by a process that has not seen the class.
    given = ("--from", str(run.path), "--tasks", "copy")
    assert command("adapt", "-c", both, *given, "--save", "-k", *ADAPT) == 0
    grid = "search.grid={adapt.lr: [1e-3]}"
    assert command("search", "-c", both, *given, "-k", *ADAPT, grid) == 0
    (adapted,) = (run.path / "adapt-all" / "models").iterdir()
    (tmp_path / "in.tsv").write_text("input\nabc\n")
    ask = ("--adapted", str(adapted), "--in", str(tmp_path / "in.tsv"))
    forget()
    assert command("predict", *ask) == USER_MISTAKE
    assert "' is code named by a saved file, which is" in " ".join(capfd.readouterr().err.split())
    assert command("predict", *ask, "--trust", "examples/nearby_router.py") == 0
    built = load_run(run.path)
    assert type(built.model.router).__name__ == "NearbyRouter"
    assert len(built.predict("reverse", ["abc"])) == 1
    monkeypatch.setenv(TRUST, "")

    # In Python an import says so.
    forget()
    monkeypatch.syspath_prepend(ROOT)
    importlib.import_module("examples.nearby_router")
    assert mttl.load(run.path).tasks == ("reverse", "number")

    # Others have to name it too.
    forget()
    for refused in (
        ("adapt", "-c", str(config), *given, "-k", *ADAPT),
        ("merge-task", str(run.path), "--task", "reverse", "--out", str(tmp_path / "m")),
    ):
        assert command(*refused) == USER_MISTAKE
        assert "--trust ./examples/nearby_router.py" in " ".join(capfd.readouterr().err.split())
    with pytest.raises(MttlError, match="' is code named by a saved file, which is not run"):
        mttl.adapt(run.path)
    assert command(*refused, "--trust", "examples/nearby_router.py") == 0
    monkeypatch.setenv(TRUST, "")

    # Figures need no code of the run's: what they show is written down.
    forget()
    with np.load(run.plots / "routing.npz") as arrays:
        assert arrays["probabilities"].shape == arrays["weights"].shape
        np.testing.assert_array_equal(arrays["probabilities"], arrays["weights"])
    assert command("plot", str(run.path)) == 0
    assert not [name for name in sys.modules if name.endswith(MODULES)]
    printed = " ".join(capfd.readouterr().out.split())
    means = printed.split("│ mean │")[1].split("│")[:2]
    # A soft router of three skills is far from discrete, and no cell of its has a half.
    assert float(means[0]) < 0.5


@pytest.mark.slow
def test_it_is_compared_with_intervals(config: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    commands: list[list[str]] = []

    def run(self: object, given: list[str], log: Path, cost: Path) -> None:
        commands.append(given)
        forget()
        assert main(given[2:]) == 0
        stages.Cost(cpu_minutes=1.0, peak_mib=100.0, ended=True).write(cost)

    monkeypatch.setattr(stages.Processes, "run", run)
    out = tmp_path / "out #1: a"  # overrides are YAML, and this is a path all the same
    budget = ("--steps", "1", "--adapt-steps", "1", "--workers", "1", "--seeds", "13", "14")
    given = ["-c", str(config), *budget, "--methods", "polytropon", "--modes"]
    mine = [*given, "--method", f"mine={NEARBY}"]
    assert compare.main([*mine, "--out", str(out)]) == 0
    assert len(commands) == 8
    assert all(f"{config}+{NEARBY}" in given for given in commands if "mine" in "".join(given))
    text = " ".join(capsys.readouterr().out.split())
    assert "With two seeds they are too narrow" in text
    table = list(csv.DictReader((out / "table.csv").open()))
    assert [row["method"] for row in table] == ["polytropon", "mine"]

    # Another file under this name is another method.
    assert (out / "methods" / "mine.yaml").is_file()
    other = tmp_path / "other.yaml"
    other.write_text((ROOT / NEARBY).read_text().replace("0.5", "0.7"))
    with pytest.raises(MttlError, match=r"'mine' has changed .*router\.temperature \(0\.5 before"):
        compare.main([*given, "--method", f"mine={other}", "--out", str(out)])

    # The same runs as they stand, beside a method whose runs were just made.
    runs = ",".join(str(out / "mine" / f"seed{seed}") for seed in (13, 14))
    beside = ["--runs", f"both={runs}", f"same={runs}"]
    forget()
    assert compare.main([*beside, "--out", str(tmp_path / "again")]) == 0
    again = {row["method"]: row for row in csv.DictReader((tmp_path / "again/table.csv").open())}
    assert again["both"]["unseen"] == table[1]["unseen"]
    assert float(again["same"]["unseen_difference_mean"]) == 0.0
    assert again["same"]["unseen_difference_low"] == "nan"  # nothing varies: no interval
    assert not [name for name in sys.modules if name.endswith(MODULES)]
    assert compare.main([*given, "--runs", f"both={runs}", "--out", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "`both` differs from" in text
    assert "router.kind (polytropon and ./examples/nearby_router.py:NearbyRouter)" in text

    # A custom method next to finished runs: no shipped method is trained.
    known = ",".join(str(out / "polytropon" / f"seed{seed}") for seed in (13, 14))
    own = ["-c", str(config), *budget, "--modes", "--method", f"mine={NEARBY}"]
    for name, place in (("polytropon", known), ("base", known)):
        assert compare.main([*own, "--runs", f"{name}={place}", "--out", str(out)]) == 0
        found = {row["method"]: row for row in csv.DictReader((out / "table.csv").open())}
        assert list(found) == ["mine", name]
        paired = "unseen_difference_mean"
        assert found["mine"][paired] == table[1][paired]
    assert len(commands) == 8

    # What has ended is counted, and what was adapted to fewer tasks is named.
    copies = [tmp_path / "copies" / f"seed{seed}" for seed in (13, 14)]
    for copy in copies:
        shutil.copytree(out / "mine" / copy.name, copy)
    shutil.rmtree(copies[1] / "adapt-all")
    (line,) = (copies[0] / "adapt-all" / "results.jsonl").read_text().splitlines()
    more = json.dumps(json.loads(line) | {"sample": 7})
    (copies[0] / "adapt-all" / "results.jsonl").write_text(f"{line}\n{more}\n")
    half = f"half={copies[0]},{copies[1]}"
    assert compare.main(["--runs", f"both={runs}", half, "--out", str(tmp_path / "half")]) == 0
    found = {row["method"]: row for row in csv.DictReader((tmp_path / "half/table.csv").open())}
    assert (found["both"]["n_seeds"], found["half"]["n_seeds"]) == ("2", "1")
    text = " ".join(capsys.readouterr().out.split())
    assert "in adapt-all: tasks and samples (1 and 2, 1 of both)." in text

    # Adapted in another way alone, runs keep their scores and are compared in that way.
    for copy in copies:
        shutil.rmtree(copy / "adapt-all", ignore_errors=True)
        shutil.copytree(out / "mine" / copy.name / "adapt-all", copy / "adapt-router_only")
    rows = ",".join(map(str, copies))
    told = ["--runs", f"one={rows}", f"two={rows}", "--out", str(tmp_path / "rows")]
    assert compare.main(told) == 0
    found = {row["method"]: row for row in csv.DictReader((tmp_path / "rows/table.csv").open())}
    assert list(found) == ["one", "one: router_only", "two", "two: router_only"]
    assert found["one"]["seen"] == table[1]["seen"]
    assert found["two: router_only"]["unseen"] == table[1]["unseen"]
    assert float(found["two: router_only"]["unseen_difference_mean"]) == 0.0

    # Tasks of training are not unseen ones, wherever runs were adapted to them.
    trained = json.loads((copies[0] / "skills" / "tasks.json").read_text())
    again = json.dumps(json.loads(line) | {"task": trained[0], "test": 1.0})
    for copy in copies:
        (copy / "adapt-router_only" / "results.jsonl").write_text(f"{line}\n{again}\n")
    assert compare.main([*told[:-1], str(tmp_path / "trained")]) == 0
    found = {row["method"]: row for row in csv.DictReader((tmp_path / "trained/table.csv").open())}
    assert found["two: router_only"]["unseen"] == table[1]["unseen"]

    # Runs that were trained on other tasks are distinguished.
    (copies[1] / "skills" / "tasks.json").write_text(json.dumps([*trained, "further"]))
    with pytest.raises(MttlError, match=r"other than the seed: the training tasks \("):
        compare.main(told)


def test_mistakes_in_methods_and_runs_are_answered(config: Path, tmp_path: Path) -> None:
    def run(name: str, seed: int, rate: float = 0.1, adapt: str = "adapt: {lr: 1}") -> Path:
        folder = tmp_path / name
        (folder / "adapt-all").mkdir(parents=True)
        (folder / "config.yaml").write_text(f"run: {{seed: {seed}}}\noptim: {{lr: {rate}}}\n")
        (folder / "adapt-all" / "config.yaml").write_text(adapt)
        (folder / "results.csv").write_text("task,split,sample,metric,score\nt,test,1,exact,0.5\n")
        return folder

    a, b, c, begun = run("a", 1), run("b", 2), run("c", 1, 0.2), run("begun", 3)
    d = run("d", 2, adapt="adapt: {lr: 7}\ndata: {max_eval_rows: 16}\n")
    (tmp_path / "empty").mkdir()
    (begun / "results.csv").unlink()
    shutil.rmtree(begun / "adapt-all")
    half = [run(f"half{seed}", seed) for seed in (4, 5)]
    for seed, folder in enumerate(half, start=4):
        results = [
            as_row(FewShotResult("new", sample, seed, "EM", 0.5, 0.5, 1, 1, 0))
            for sample in range(seed)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in results)
        (folder / "adapt-all" / "results.jsonl").write_text(lines)
    for given, message in (
        (("--method", "mine"), "--method 'mine' must be NAME=FILE"),
        (("--method", "a/b=x.yaml"), "NAME of letters and digits"),
        (("--method", "shared=x.yaml"), "--method shared: another method has this name; choose a"),
        (("--runs", "mine"), "--runs 'mine' must have the form NAME=RUN"),
        (("--runs", f"mine={a},{tmp_path / 'empty'}"), "is not a run, because it has no"),
        (("--runs", f"mine={a},{c}"), r"differ in settings other than the seed: optim\.lr \(0\.1"),
        (("--runs", f"mine={b},{d}"), r"adapt-all: adapt\.lr \(1 and 7\), .*max_eval_rows"),
        (("--runs", f"mine={a},{a}"), "' have the same seed, 1; remove one"),
        (("--runs", f"mine={a}", f"mine={b}"), "--runs mine: another method has this name; choose"),
        (("--runs", f"x={a}", f"y={b}"), "'y' has the seeds 2 and 'x' has 1; .* a common seed"),
        (("--runs", f"x={a}", "--reference", "z"), "the reference z is not among the compared"),
        (("--runs", f"mine={a},{begun}"), "'.*begun' has not finished; finish it with"),
        (("--runs", f"mine={half[0]},{half[1]}"), "half4/adapt-all' has results for 4 of the 5"),
        (("--runs", f"x={a}", "-k", "a.b=1", "--seeds", "13", "--modes"), "--runs trains nothing,"),
    ):
        with pytest.raises(MttlError, match=message):
            compare.main(["--out", str(tmp_path / "out"), *given])
    assert not (tmp_path / "out").exists()


@pytest.mark.every(2)
@pytest.mark.parametrize("backbone", [TINY_T5, TINY_LLAMA], ids=["t5", "llama"])
def test_a_router_may_read(tmp_path: Path, config: Path, backbone) -> None:
    config = write_config(
        config,
        tmp_path / "gym",
        backbone=backbone,
        data={"partition": {"train": ["reverse", "number"], "test": ["copy"]}},
    )
    run = train(f"{config}+{READING}", "reads", *QUICK)
    built = load_run(run.path)
    router = built.model.router
    assert router.seen == ("descriptions", "prompts")
    assert router.shown_descriptions.shape == (2, 16)
    # What it was shown is what the text says, in the backbone of the beginning.
    assert router.shown_descriptions.abs().sum() > 0
    assert not torch.equal(*router.shown_descriptions)

    # One prompt has one mixture, whether it is trained on or answered, alone or padded.
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    tasks = torch.tensor([0, 1])
    both = built.model.route(tasks, inputs={"input_ids": ids, "attention_mask": mask}).mixing
    alone = built.model.route(tasks[1:], inputs={"input_ids": ids[1:, :2]}).mixing
    torch.testing.assert_close(both[:, 1:], alone)
    assert not torch.equal(both[:, 0], router.matrix()[:, 0])
    if backbone is TINY_LLAMA:
        labels = torch.tensor([[-100, -100, 9], [-100, -100, -100]])
        trained = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        first = built.model.route(tasks[:1], inputs={"input_ids": ids[:1, :2]}).mixing
        found = built.model.route(tasks, inputs=trained).mixing
        torch.testing.assert_close(found[:, :1], first)
    with pytest.raises(ValueError, match="this router reads prompts"):
        built.model.route(tasks)
    assert len(built.predict("reverse", ["abc", "a"])) == 2
    assert len(built.choose("reverse", ["abc"], ["x", "y"])) == 1

    # A new task is routed by its own description, and answers again when it is loaded.
    adapt = ("--from", str(run.path), "--samples", "100", "--save", "-k", *ADAPT)
    assert command("adapt", "-c", f"{config}+{READING}", *adapt) == 0
    (folder,) = (run.path / "adapt-all" / "models").iterdir()
    new = load_run(folder).model.router
    assert new.shown_descriptions.shape == (1, 16)
    assert not any(torch.equal(new.shown_descriptions[0], row) for row in router.shown_descriptions)
    with pytest.raises(CheckpointError, match="ReadingRouter mixes skills by the text, but Poly"):
        poly_checkpoint(built.model, base=None)
    with pytest.raises(CheckpointError, match="mixes skills by the text, so a task"):
        main(["merge-task", str(run.path), "--task", "reverse", "--out", str(tmp_path / "merged")])


def test_a_router_that_reads_needs_something_to_read(config: Path, tmp_path: Path) -> None:
    table = tmp_path / "gym" / "TASKS.csv"
    table.write_text(table.read_text().replace("letters reverse", ""))
    with pytest.raises(MttlError, match=r"reads task descriptions.* no description of 'reverse'"):
        train(f"{config}+{READING}", "reads", *QUICK)
    assert not (tmp_path / "runs" / "reads").exists()

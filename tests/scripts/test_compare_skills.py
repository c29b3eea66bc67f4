"""Kinds of skills side by side: equal steps, equal parameters, and sweeps."""

import argparse
import csv
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.command import ROOT, load_recipe, train
from helpers.gyms import TASKS, write_config, write_gym
from mttl.build.model import load_run
from mttl.config.load import load_config
from mttl.errors import MttlError

sys.path.insert(0, str(ROOT / "scripts"))
SCRIPT = load_recipe(ROOT / "scripts" / "compare.py")
SWEEP = load_recipe(ROOT / "scripts" / "sweep_skills.py")
FOLDER = importlib.import_module("comparison.folder")
KINDS = importlib.import_module("comparison.kinds")
METHODS = importlib.import_module("comparison.methods")
TABLES = importlib.import_module("comparison.tables")
BUDGET = ("--steps", "1", "--adapt-steps", "1", "--workers", "1", "--seeds", "13")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure a gym of which one task is left out of training, below a frozen backbone."""
    gym = write_gym(tmp_path / "gym")
    names = list(TASKS)
    (gym / "partition.json").write_text(json.dumps({"train": names[1:], "test": names[:1]}))
    return write_config(tmp_path / "tiny.yaml", gym, backbone={"train": False})


def compare(config: Path, out: Path, *more: str) -> int:
    return SCRIPT.main(["-c", str(config), "--out", str(out), *BUDGET, *more])


def test_kinds_end_in_a_table_of_what_they_change_and_cost(
    config: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ("--skills", "lora", "bitfit")
    assert compare(config, out, *given) == 0
    scripts = [Path(command[0]).stem for command in commands]
    assert sorted(scripts) == ["pl_finetune"] * 2 + ["pl_train"] * 2 + ["skill_cost"] * 2
    assert compare(config, out, *given) == 0
    assert len(commands) == 6  # what has ended is read
    lines = {line["kind"]: line for line in json.loads((out / "kinds.json").read_text())}
    assert list(lines) == ["lora", "bitfit"]
    line = lines["lora"]
    assert (line["trained_share"], line["changed"], line["memory"]) == (5.0, 25.0, 1.5)
    assert (line["rank"], line["full_rank"], line["mergeable"]) == (2.0, 16.0, True)
    assert line["n_bytes"] > lines["bitfit"]["n_bytes"] > 0
    with (out / "table.csv").open() as file:
        table = {row["method"]: row for row in csv.DictReader(file)}
    for kind, line in lines.items():
        assert line["seen"]["mean"] == pytest.approx(float(table[kind]["seen"]), abs=1e-3)
        assert line["unseen"]["mean"] == pytest.approx(float(table[kind]["unseen"]), abs=1e-3)
    assert "| `bitfit` | 100 | 5 | 25 | 2.0 of 16 |" in (out / "kinds.md").read_text()
    assert "Kinds of skills:" in capsys.readouterr().out
    assert all(name in (out / "kinds.svg").read_text() for name in lines)


def test_all_stands_for_every_fragment_that_ships(config: Path) -> None:
    shipped = sorted(path.stem for path in (ROOT / "configs" / "skills").glob("*.yaml"))
    assert KINDS.kind_names() == shipped
    some = KINDS.kind_methods(["lora", "dense", "lora"], "crossfit.yaml", ())
    assert list(some) == ["lora", "dense"]
    assert some["lora"].rate == 1
    # Its file trains at 1.5e-3 instead of 2e-2.
    (own,) = some["dense"].adaptation(1e-2)
    assert own == f"adapt.lr={0.075 * 1e-2}"


def test_every_kind_is_a_method_of_the_default(config: Path) -> None:
    for name, method in KINDS.kind_methods(["all"], "crossfit.yaml", ()).items():
        assert load_config(f"crossfit.yaml+{method.fragment}").skills.kind is not None, name


def test_kinds_are_brought_to_equal_size(config: Path, tmp_path: Path) -> None:
    wanted = 7_700
    names = ["lora", "sparse", "bitfit", "dense"]
    methods = KINDS.kind_methods(names, str(config), (), n_parameters=wanted)
    settings = {name: method.settings[0] for name, method in methods.items()}
    assert [text.partition("=")[0] for text in settings.values()] == [
        *("skills.rank", "skills.sparsity", "skills.n_skills", "skills.n_skills")
    ]
    for method in methods.values():
        files = f"{config}+{method.fragment}"
        found = KINDS.count_skills(load_config(files, list(method.settings)), ("a", "b"))
        assert abs(found - wanted) < 0.05 * wanted


@pytest.mark.parametrize(("wanted", "found"), [(1, 1), (24, 2), (26, 3), (30, 3), (900, 9)])
def test_the_nearest_size_is_found(wanted: int, found: int) -> None:
    assert KINDS.nearest_size(lambda size: 10 * size, wanted, 9) == found


def test_mistakes_of_kinds_cost_no_training(config: Path, tmp_path: Path) -> None:
    trained = write_config(tmp_path / "trained.yaml", tmp_path / "gym")
    for given, message in (
        ((config, "--skills", "lorra"), "no file 'skills/lorra.yaml' .* Did you mean 'lora'"),
        ((config, "--parameters", "9"), "--parameters needs --skills"),
        ((trained, "--skills", "lora"), "frozen backbone.*trains it: set -k backbone.train=false"),
    ):
        with pytest.raises(MttlError, match=message):
            compare(given[0], tmp_path / "out", *given[1:])
    assert not (tmp_path / "out").exists()


def test_the_whole_backbone_is_tuned_at_one_rate_below_any_kind(
    config: Path, tmp_path: Path
) -> None:
    """(IA)³ has ten times the rate of LoRA."""
    kinds = KINDS.kind_methods(["ia3"], str(config), [], modes=["full"])
    comparison = FOLDER.Comparison(tmp_path, str(config), 1, 1, "test", methods=kinds)
    plan = METHODS.Plan("ia3", 13)
    rates = {}
    for way in kinds["ia3"].ways:
        files = comparison.adapt_files(plan)
        rates[way.name] = load_config(files, comparison.adaptation(plan, way)).adapt.lr
    common = load_config(str(config)).adapt.lr
    assert rates == {"all": pytest.approx(kinds["ia3"].rate * common), "full": 1e-3}
    assert kinds["ia3"].rate != 1


def test_a_kind_and_a_method_of_ones_own_have_two_names(config: Path, tmp_path: Path) -> None:
    with pytest.raises(MttlError, match="--method lora: --skills has a kind of this name"):
        compare(config, tmp_path / "out", "--skills", "lora", "--method", f"lora={config}")


def test_damaged_measures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "seed13-skills.json"
    path.write_text('{"rows": []}')
    with pytest.raises(MttlError, match=r"seed13-skills\.json' is damaged .*Delete it"):
        KINDS._measures(path)


def test_intervals_are_those_of_seeds() -> None:
    def score(seed: int, task: str, value: float) -> object:
        return TABLES.Score("lora", "", seed, "seen", task, 1, value)

    one = KINDS.seed_mean([score(13, "a", 10.0), score(13, "b", 30.0)])
    assert one.mean == 20
    assert math.isnan(one.low)
    three = KINDS.seed_mean([score(seed, "a", x) for seed, x in ((1, 10.0), (2, 20.0), (3, 30.0))])
    assert three.high - three.mean == pytest.approx(4.303 * 10 / math.sqrt(3), rel=1e-3)
    assert KINDS.known({"a": math.nan, "b": 1.0}) == {"a": None, "b": 1.0}


@pytest.mark.parametrize(
    ("sweep", "values", "kind", "setting"),
    [
        ("density", ("0.5", "1"), "sparse", "skills.sparsity=0.500000"),
        pytest.param(*("rows", ("2", "4"), "lora", "data.max_rows=2"), marks=pytest.mark.slow),
        pytest.param(*("rates", ("0.5", "2"), "ia3", "optim.lr=0.005"), marks=pytest.mark.slow),
    ],
)
def test_a_sweep_ends_in_one_table_and_one_figure(
    *,
    sweep: str,
    values: tuple[str, str],
    kind: str,
    setting: str,
    config: Path,
    tmp_path: Path,
    commands: list[list[str]],
) -> None:
    out = tmp_path / "out"
    fragment = "" if kind != "ia3" else "-k skills.targets=[attention]"
    given = [sweep, "-c", str(config), "--out", str(out), *BUDGET, "--skills", kind]
    given += ["--values", *values, *fragment.split()]
    assert SWEEP.main(given) == 0
    assert [Path(command[0]).stem for command in commands] == ["pl_train", "pl_finetune"] * 2
    assert setting in commands[0]
    dots = json.loads((out / "sweep.json").read_text())
    assert [(dot["kind"], dot["x"]) for dot in dots] == [(kind, float(x)) for x in values]
    assert f"| kind | {values[0]} | {values[1]} |" in (out / "sweep.md").read_text()
    assert kind in (out / "sweep.svg").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("density", "--skills", "lora"), "skills of the kind 'lora' have no density"),
        (("density", "--values", "0"), "--values 0: a density lies above 0"),
        (("rows", "--skills", "lora", "--values", "0.5"), "0.5: a number of rows is whole"),
        (("rates", "--skills", "lora", "--values", "-1"), "-1: a factor on rates lies above 0"),
    ],
)
def test_mistakes_of_sweeps_cost_no_training(
    given: tuple[str, ...], message: str, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(MttlError, match=message):
        SWEEP.main([*given, "-c", str(config), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_what_skills_change_is_counted(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks")
    cost: Any = load_recipe(ROOT / "scripts" / "benchmarks" / "skill_cost.py")
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    run = train(config, "lora", "trainer.max_steps=2")
    found = cost.changed(load_run(run.path))
    layers = load_run(run.path).model.skilled_layers().values()
    entries = sum(layer.inventory.in_features * layer.inventory.out_features for layer in layers)
    assert found["mergeable"] == 1
    assert found["rank"] == 2  # of the settings
    assert found["full"] == 8
    assert 0.9 * entries < found["changed"] <= entries
    settings = argparse.Namespace(run=str(run.path), rows=4)
    for variant in cost.VARIANTS:
        cost.build_step(variant, settings)[0]()
        answer, facts = cost.build_answers(variant, settings)
        assert len(answer()) == 4
        assert bool(facts) == (variant == "with skills")
    query: Any = load_recipe(ROOT / "scripts" / "benchmarks" / "query_cost.py")
    settings.folders = {"own": str(run.path)}
    for variant in (query.FLOOR, "own"):
        answer, _ = query.build(variant, settings)
        assert len(answer()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.kind_names())
def test_every_kind_is_trained_and_measured(
    kind: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks")
    monkeypatch.delitem(sys.modules, "_common", raising=False)
    cost: Any = load_recipe(ROOT / "scripts" / "benchmarks" / "skill_cost.py")
    tiny = "backbone.config={d_model: 32, d_kv: 16, d_ff: 64, feed_forward_proj: gated-gelu}"
    short = ("trainer.max_steps=1", "trainer.val_check_interval=1", "data.evaluate=[]")
    run = train(f"{config}+skills/{kind}.yaml", kind, *short, tiny)
    settings = argparse.Namespace(run=str(run.path), rows=4)
    for variant in cost.VARIANTS:
        cost.build_step(variant, settings)[0]()
        answer, facts = cost.build_answers(variant, settings)
        assert len(answer()) == 4
    assert facts["trained"] > 0
    assert facts["mergeable"] in (0, 1)

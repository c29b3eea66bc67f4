"""Sweeps of λ, against merges by `mttl merge` that answer by the lines of their cards."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.cards import run_card
from helpers.gyms import TINY_T5, make_run, store_backbone
from mttl.commands import merge, sweep
from mttl.io import yaml12
from mttl.merging import run
from mttl.metrics.crossfit import score_answers
from mttl.tasks.folder import Gym

# The kinds of changes that are removed: of all weights, low-rank ones, and sparse ones.
LORA = {"kind": "lora", "n_skills": 2, "rank": 2, "targets": ["attention"]}
SPARSE = {"kind": "sparse", "n_skills": 2, "sparsity": 0.9, "targets": ["attention"]}
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "full": (True, LORA),
    "lora": (False, LORA),
    "sparse": (False, SPARSE),
}
METHODS = {
    "plain": {"method": {"kind": "arithmetic"}, "weights": [0.5]},
    "CaPE": {"method": {"kind": "cape"}, "weights": [20.0]},
    "EWR": {"method": {"kind": "elastic", "ceiling": 2.0}, "weights": [0.5]},
}
METRICS = ["chrf", "exact", "bleu"]


def start(folder: Path, kind: str) -> dict[str, Any]:
    """Write a base, a run on it and Fisher information; return the settings of a sweep."""
    trained, skills = KINDS[kind]
    backbone = store_backbone(folder / "base", {**TINY_T5, "initial_scale": {"*": 3.0}})
    backbone["train"] = trained
    (folder / "skills.yaml").write_text(json.dumps({"skills": skills}))
    fragment = f"+{folder / 'skills.yaml'}"
    large = ("optim.lr=0.3", "trainer.max_steps=2")
    made = str(make_run(folder, *large, fragment=fragment, backbone=backbone))
    tensors = load_file(folder / "base" / "model.safetensors")
    fisher = str(folder / "fisher.safetensors")
    save_file({name: torch.rand(value.shape) for name, value in tensors.items()}, fisher)
    one = {"run": made, "fisher": fisher}
    expert = {**one, "task": "reverse", "weight": 0.25}
    return {
        "base": {"model": str(folder / "base"), "fisher": fisher},
        "models": [expert, {**one, "task": "copy", "role": "anti_expert"}],
        **{"methods": METHODS, "run": made, "task": "reverse", "metrics": METRICS},
    }


def by_hand(folder: Path, settings: dict[str, Any], name: str) -> list[str]:
    """Return the answers of a merge of `mttl merge` to the development rows."""
    (weight,), method = METHODS[name]["weights"], dict(METHODS[name]["method"])
    base, models = dict(settings["base"]), [dict(model) for model in settings["models"]]
    models[1]["weight"] = weight
    if name == "CaPE":
        method["weight"] = weight
        models = [{k: v for k, v in one.items() if k != "weight"} for one in models]
    for part in (base, *models) if name != "EWR" else ():
        del part["fisher"]
    recipe, out = folder / "recipe.yaml", folder / f"merged_{name}"
    recipe.write_text(yaml12.dump({"base": base, "models": models, "method": method}))
    assert merge.main([str(recipe), "--out", str(out), "--no-probe"]) == 0
    rows = Gym(folder / "gym").rows("reverse", "dev", 100)
    return run_card(out, [row.input for row in rows])


def sweep_it(folder: Path, settings: dict[str, Any], *more: str) -> dict[str, list[str]]:
    """Return the answers of every merge of a sweep."""
    path = folder / "sweep.yaml"
    path.write_text(yaml12.dump(settings))
    assert sweep.main([str(path), "--out", str(folder / "out"), *more]) == 0
    lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    found = {line["job"]: line["rows"] for line in map(json.loads, lines)}
    return {job: [row["prediction"] for row in rows] for job, rows in found.items()}


@pytest.mark.parametrize(
    ("kind", "method"), [("full", "EWR"), ("lora", "plain"), ("sparse", "CaPE")]
)
def test_an_anti_expert_of_each_kind_is_removed(kind: str, method: str, tmp_path: Path) -> None:
    job = f"{method} λ={METHODS[method]['weights'][0]:g}"
    settings = start(tmp_path, kind) | {"methods": {method: METHODS[method]}}
    found = sweep_it(tmp_path, settings)
    assert list(found) == ["base", job]
    rows = Gym(tmp_path / "gym").rows("reverse", "dev", 100)
    with (tmp_path / "out" / "scores.csv").open() as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    expected = by_hand(tmp_path, settings, method)
    assert found[job] == expected != found["base"]  # merging changes answers
    for metric in METRICS:
        score = score_answers(metric, expected, [row.outputs for row in rows])
        assert float(lines[method][metric]) == score
    assert (tmp_path / "out" / "sweep.svg").is_file()


def test_a_second_sweep_merges_only_what_is_new(tmp_path: Path, monkeypatch, refused) -> None:
    """The rows may also come from a table; other rows are refused."""
    table = tmp_path / "rows.csv"
    table.write_text("input,output\nab,ba\nabca,acba\n")
    methods = {name: METHODS[name] for name in ("plain", "CaPE")}
    settings = start(tmp_path, "lora") | {"table": str(table), "methods": methods}
    found = sweep_it(tmp_path, settings)
    assert {len(answers) for answers in found.values()} == {2}
    merged = []

    def noted(recipe: Any, out: str) -> None:
        merged.append((recipe.method.kind, recipe.method.weight))
        real(recipe, out)

    real = run.merge_models
    monkeypatch.setattr(run, "merge_models", noted)
    cape = {"method": {"kind": "cape"}, "weights": [20.0, 30.0]}
    changed = settings | {"methods": methods | {"CaPE": cape}, "metrics": ["exact", "chrf"]}
    assert list(sweep_it(tmp_path, changed)) == [*found, "CaPE λ=30"]
    assert merged == [("cape", 30.0)]
    for change, message in (
        ({"generation": {"num_beams": 2}}, "has answers of other settings: generation.num_beams"),
        ({"methods": {"CaPE": {**cape, "method": {"kind": "dare"}}}}, "another method 'CaPE'"),
        ({"metrics": ["exact", "chfr"]}, "metrics ('chfr') must be one of"),
        ({"task": "kopy"}, "Did you mean 'copy'"),
    ):
        path = tmp_path / "other.yaml"
        path.write_text(yaml12.dump(changed | change))
        assert message in refused(sweep.main, path, "--out", tmp_path / "out")
    again = (tmp_path / "sweep.yaml", "--split", "test", "--out", tmp_path / "out")
    assert "--split has no effect on the table" in refused(sweep.main, *again)

"""One command trains every kind and prints one table."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from helpers.command import ROOT, load_recipe, read_csv
from mttl.config.moe_schema import MEMBERS as MEMBER_ROUTERS

OTHER_GYM = "router/metadata_grid"
# Nothing of these is trained: they route among members of a library.
MEMBERS = tuple(f"router/{name}" for name in ("retrieval", *MEMBER_ROUTERS))
MEAN = "mean", "test"
SCRIPT = load_recipe(ROOT / "scripts" / "train_all_kinds.py")
_, STATED = (ROOT / "docs" / "skills.md").read_text(encoding="utf-8").split("## What each reaches")


class Stated(NamedTuple):
    """A row of the page's table: what was measured, and what every run has to exceed."""

    steps: int
    measured: float
    least: float


def stated() -> dict[str, Stated]:
    rows = [line.split("|")[1:-1] for line in STATED.splitlines() if line.startswith("| `")]
    return {
        name.strip(" `"): Stated(int(steps), float(score), float(least))
        for name, steps, score, least in rows
    }


def stated_options():
    command = next(line for line in STATED.splitlines() if line.startswith("python scripts/train"))
    return SCRIPT.parse(shlex.split(command)[2:])


def test_every_shipped_router_and_skill_is_in_the_table() -> None:
    """Tokens are in the comparison; the factors of `metadata_grid` are of another gym's tasks."""
    shipped = [path.stem for path in (ROOT / "configs" / "router").glob("*.yaml")]
    of_tasks = {f"router/{name}" for name in shipped if not name.startswith("token_")}
    assert set(SCRIPT.ROUTERS) == of_tasks - {OTHER_GYM, *MEMBERS}
    assert SCRIPT.parse([]).fragments == [*SCRIPT.ROUTERS, "skills"]


def test_a_finished_run_is_read_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "router-shared"
    (folder / "skills").mkdir(parents=True)
    save_file({"a": torch.zeros(7)}, folder / "skills" / "skills.safetensors")
    (folder / "minutes.json").write_text(json.dumps(1.25))
    (folder / "results.csv").write_text(
        "task,split,sample,seed,metric,score,n\n"
        "one,dev,100,13,EM,0.1,5\nmean,dev,all,13,mean,0.25,5\nmean,test,all,13,mean,0.5,5\n"
    )
    assert SCRIPT.main(["--fragments", "router/shared", "--out", str(tmp_path)]) == 0
    assert "| `router/shared` | 7 | 25.0 | 50.0 | 1.2 |" in capsys.readouterr().out
    assert "router/shared" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "router-shared.log").exists()


def test_an_unknown_fragment_costs_no_training(tmp_path: Path) -> None:
    with pytest.raises(SCRIPT.MttlError, match="router/shard"):
        SCRIPT.main(["--fragments", "router/shard", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_room_stands_for_all_of_its_files() -> None:
    assert SCRIPT.expanded("router/shared") == ["router/shared"]
    files = (ROOT / "configs" / "skills").glob("*.yaml")
    assert SCRIPT.expanded("skills") == sorted(f"skills/{path.stem}" for path in files)
    with pytest.raises(SCRIPT.MttlError, match="--fragments skils must be ROOM/NAME, or a room"):
        SCRIPT.expanded("skils")


def test_every_kind_of_skill_has_a_stated_score() -> None:
    rows, options = stated(), stated_options()
    kinds = [name for name in rows if "/" not in name]
    assert sorted(f"skills/{name}" for name in kinds) == SCRIPT.expanded("skills")
    # Those that no comparison has a row of.
    routers = "router/adamix", "router/categorical", "router/score_function"
    others = "optim/maml", "optim/reptile", "backbone/last_block"
    assert {*rows} - {*kinds} == {*routers, *others}
    assert options.fragments == ["skills"]
    for row in rows.values():
        assert row.steps >= options.steps
        assert 0 <= row.least < row.measured


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a machine with other work; half a minute on a free one
@pytest.mark.parametrize("name", [name for name in stated() if name != "head_mask"])
def test_every_kind_of_skill_reaches_its_stated_score(name: str, tmp_path: Path) -> None:
    options, row = stated_options(), stated()[name]
    fragment = name if "/" in name else f"skills/{name}"
    files = f"{options.config}+{fragment}.yaml"
    found = SCRIPT.train(files, fragment, row.steps, options.seed, tmp_path, options.override)
    assert found.test > row.least


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_masks_of_heads_reach_their_stated_score_above_a_tuned_backbone(tmp_path: Path) -> None:
    """The page's three commands: tune, fold, and mask."""
    lines = [line for line in STATED.splitlines() if re.search("runs/masks\\b", line)]
    for line in lines:
        script, *given = shlex.split(line.replace("runs/masks", str(tmp_path)))[1:]
        assert load_recipe(ROOT / script).main(given) == 0
    assert len(lines) == 3
    rows = read_csv(tmp_path / "kinds" / "skills-head_mask" / "results.csv")
    (score,) = (float(row["score"]) for row in rows if (row["task"], row["split"]) == MEAN)
    assert 100 * score > stated()["head_mask"].least


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_mask_of_heads_reaches_its_stated_loss(tmp_path: Path) -> None:
    """It answers nothing, and brings the loss of answers below the bare backbone's."""
    line = next(line for line in STATED.splitlines() if "runs/masked" in line)
    assert SCRIPT.main([*shlex.split(line)[2:-1], str(tmp_path)]) == 0
    metrics = read_csv(tmp_path / "skills-head_mask" / "metrics.csv")
    losses = [float(row["val/loss"]) for row in metrics if row["val/loss"]]
    least = re.search(r"holds\s+it below (\d)", STATED)
    assert least is not None
    assert losses[-1] < float(least[1])

"""Adapted tasks join their run: all tasks answer from one inventory as they did apart."""

import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import mttl
from helpers.command import read_csv
from helpers.new_tasks import PAIRS, STEPS, adapted, logits, train_source
from mttl.adaptation.add_tasks import add_tasks
from mttl.analysis.figures import canvas
from mttl.checkpoints.saved_inventory import read_inventory, write_inventory
from mttl.commands import add_tasks as ADD
from mttl.commands import plot as PLOT
from mttl.inference.predictor import Predictor
from mttl.io.errors import CheckpointError

# No scores: what is added is looked at.
UNSCORED = ["trainer.max_steps=1", "data.validation=none", "data.evaluate=[]"]
KINDS = "skills.kinds=[{kind: mtl_lora, targets: [attention]}, {kind: lora, targets: [mlp]}]"
READING = importlib.import_module("mttl.commands.routing_report.read_routing")


def adapt(run: Path, folder: Path, mode: str, **settings: object) -> Path:
    adapted(run, mode, folder.name, **settings).save(folder)
    return folder


@pytest.fixture(scope="module")
def row(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapt(run, tmp_path_factory.mktemp("row") / "row", "router_only")


@pytest.fixture(scope="module")
def skills(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapt(run, tmp_path_factory.mktemp("skills") / "skilled", "all")


def add(run: Path, out: Path, *folders: Path) -> Predictor:
    parts = [read_inventory(folder, run) for folder in folders]
    write_inventory(add_tasks(out / "skills", read_inventory(run), parts))
    return mttl.load(out)


def assert_answers_as_apart(run: Path, after: Predictor, *folders: Path) -> None:
    """Sums have more terms, of 1e-13: equal up to rounding in single precision."""
    before = mttl.load(run)
    expected = [logits(before, *before.tasks)]
    expected += [logits(mttl.load(folder), folder.name) for folder in folders]
    torch.testing.assert_close(
        logits(after, *after.tasks), torch.cat(expected), rtol=1e-4, atol=1e-5
    )


def test_a_row_is_added(run: Path, row: Path, tmp_path: Path) -> None:
    before, alone, after = mttl.load(run), mttl.load(row), add(run, tmp_path, row)
    assert after.tasks == (*before.tasks, "row")
    assert after.model.router.n_skills == before.model.router.n_skills
    assert torch.equal(
        after.model.router.matrix(),
        torch.cat([before.model.router.matrix(), alone.model.router.matrix()], 1),
    )
    # The same products in the same order: equal bit for bit.
    assert torch.equal(logits(after, *before.tasks), logits(before, *before.tasks))
    assert torch.equal(logits(after, "row"), logits(alone, "row"))
    assert not torch.allclose(logits(after, "row"), logits(after, before.tasks[0]))


def test_a_task_brings_its_skills(run: Path, row: Path, skills: Path, tmp_path: Path) -> None:
    second = adapt(run, tmp_path / "second", "all")
    before, after = mttl.load(run), add(run, tmp_path / "out", skills, row, second)
    assert after.tasks == (*before.tasks, "skilled", "row", "second")
    assert after.model.router.n_skills == 3 * before.model.router.n_skills
    assert_answers_as_apart(run, after, skills, row, second)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("router", "settings"),
    [
        (["router.kind=task_moe"], {}),
        (["router.kind=shared", "skills.n_skills=1"], {}),
        (["router.kind=private", "skills.n_skills=per_task"], {"init": "private_skill"}),
        (["router.kind=score_function"], {}),
    ],
    ids=["task_moe", "shared", "private", "score_function"],
)
def test_other_routers(router: list[str], settings: dict, tmp_path: Path) -> None:
    run = train_source(tmp_path, settings=[*router, *UNSCORED])
    folder = adapt(run, tmp_path / "own", "skills_only", **settings)
    assert_answers_as_apart(run, add(run, tmp_path / "out", folder), folder)


@pytest.mark.slow
def test_a_run_with_skills_of_single_tasks_grows(tmp_path: Path) -> None:
    """Which skills are common is known of the run of more tasks too, and of one adapted task."""
    own_skills = ["router.kind=c_poly", "skills.n_skills=2"]
    run = train_source(tmp_path, settings=[*own_skills, *UNSCORED])
    row = adapt(run, tmp_path / "row", "router_only")
    own = adapt(run, tmp_path / "skilled", "all")
    before, after = mttl.load(run), add(run, tmp_path / "out", row, own)
    n_skills = before.model.router.n_skills
    assert n_skills == 2 + len(before.tasks)
    assert after.model.router.n_skills == 2 * n_skills
    used = [line.nonzero().flatten().tolist() for line in after.model.router.allowed]
    assert used[-2:] == [[0, 1], [n_skills, n_skills + 1, n_skills + 2]]
    assert used[:-2] == [[0, 1, 2 + task] for task in range(len(before.tasks))]
    assert_answers_as_apart(run, after, row, own)
    config = str(run.parents[1] / "tiny.yaml")
    for source in (tmp_path / "out", own):
        again = mttl.adapt_to(source, PAIRS, task="newer", mode="all", config=config, **STEPS)
        again.save(source / "newer")
        kept = mttl.load(source / "newer").model.router
        assert torch.equal(kept.matrix(), again.model.router.matrix())
        assert kept.allowed[0].nonzero().flatten().tolist() == [0, 1, 2]


def test_the_command_writes_a_run(run: Path, row: Path, skills: Path, tmp_path: Path) -> None:
    out = tmp_path / "more"
    given = [str(run), "--adapted", str(row), str(skills), "--out", str(out)]
    assert ADD.main(given) == 0
    loaded = mttl.load(out)
    assert loaded.predict("row", ["ab"]) == mttl.load(row).predict("row", ["ab"])
    tasks = [line["task"] for line in read_csv(out / "results.csv")]
    assert {"row", "skilled", *mttl.load(run).tasks} == set(tasks)
    arrays = np.load(out / "plots" / "routing.npz")
    assert arrays["tasks"].tolist() == list(loaded.tasks)
    again = mttl.adapt_to(out, PAIRS, task="newer", mode="router_only", **STEPS)
    assert again.model.router.n_skills == loaded.model.router.n_skills
    with pytest.raises(SystemExit, match="2"):  # the folder is there
        ADD.main(given)


@pytest.mark.slow
def test_plots_show_which_tasks_it_is_like(run, row, skills, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(canvas, "DOTS_PER_INCH", 20)  # nothing here looks at pixels
    given = [str(run), "--adapted", str(row), str(skills), "--out", str(tmp_path)]
    assert PLOT.main(given) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Tasks with routing similar to the adapted tasks" in printed
    view = READING.read_view(run, [str(row), str(skills)])
    matrix = mttl.load(row).model.router.matrix()[:, 0, 0].detach().numpy()
    assert view.record.tasks[-2:] == ("row", "skilled")
    np.testing.assert_array_equal(view.record.weights[:, -2], matrix)
    first = view.record.tasks[int(view.similarity[-2, :-2].argmax())]
    assert f"row │ {first}" in printed


def test_adapted_tasks_have_names_of_their_own(run: Path, row: Path, tmp_path: Path) -> None:
    task = mttl.load(run).tasks[0]
    folders = [str(shutil.copytree(row, tmp_path / name)) for name in ("a/row", "b/row", task)]
    names = READING.read_view(run, folders).record.tasks[-3:]
    assert names == ("row", "b/row", f"{tmp_path.name}/{task}")


def refused(run: Path, out: Path, *folders: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        add(run, out, *folders)
    assert not out.exists()
    return str(error.value)


def test_what_cannot_be_added(run: Path, row: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    full = adapt(run, tmp_path / "full", "full")
    assert "adaptation also trained its backbone" in refused(run, out, full)
    average = adapt(run, tmp_path / "average", "average")
    message = "its router is 'average', but the run's is 'polytropon'"
    assert f"{message}. Adapt with adapt.mode=router_only adapt.init=nearest_task" in refused(
        run, out, average
    )
    assert "', which is already in the run or among the added tasks;" in refused(run, out, row, row)
    fragment = tmp_path / "beams.yaml"
    fragment.write_text("generation: {num_beams: 2}\n")
    given = f"{run / 'config.yaml'}+{fragment}"
    beams = adapt(run, tmp_path / "beams", "router_only", config=given)
    assert "its generation is num_beams=2" in refused(run, out, beams)


@pytest.mark.parametrize(
    ("settings", "mode", "message"),
    [
        (["router.kind=hyperformer"], "router_only", "adaptation changed the router's common"),
        (["router.kind=hyperformer"], "skills_only", "'hyperformer' cannot have unused skills"),
        (["router.shared_skill=true"], "all", "additional skills change the routing weights of"),
        (["skills.shared_down=true"], "all", "all skills share a factor"),
        (["skills.kind=adapter", "skills.stages=[5, 3]"], "all", "skills with stages cannot be"),
        (["skills.kind=mtl_lora"], "from_scratch", "adaptation changed parameters of all skills"),
        (["skills.kind=several", KINDS], "all", "one of several kinds has parameters of all"),
    ],
)
def test_what_these_routers_cannot(settings, mode, message, tmp_path) -> None:
    run = train_source(tmp_path, settings=[*settings, *UNSCORED])
    folder = adapt(run, tmp_path / "own", mode)
    assert re.search(message, refused(run, tmp_path / "out", folder))

"""Tasks with heads with every command: it works, or says why not."""

from pathlib import Path

import pytest

from helpers.headed import write_headed
from matrix.toy import Refused, command
from mttl.assembly.model import load_run

CELLS = [
    ("encoder", "router/polytropon.yaml"),
    ("encoder", "skills/krona.yaml"),
    ("decoder", "skills/adapter_pfeiffer.yaml"),
    ("decoder", "router/multi_head.yaml"),
]
ANSWERED = ("ner", "pairs", "scores", "trees")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_headed(tmp_path_factory.mktemp("headed"))


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("backbone", "file"), CELLS)
def test_heads_with_every_command(folder: Path, tmp_path: Path, backbone: str, file: str) -> None:
    files = ["-c", f"custom.yaml+{folder / backbone}.yaml+{file}", "-k"]
    data = [f"data.tasks={folder / 'tasks.yaml'}"]
    run, adapted = tmp_path / "run", tmp_path / "adapted"
    settings = [f"run.dir={tmp_path}", "run.name=run", "trainer.max_steps=2", *data]
    command("plan", *files, *settings)
    command("train", "--dry-run", *files, *settings)
    command("train", *files, *settings)
    given = ["--from", run, "--tasks", "new", "--out", adapted, "--save"]
    command("adapt", *given, *files, "adapt.max_steps=1", *data)
    (model,) = (adapted / "models").glob("*")
    for task in ANSWERED:
        (tmp_path / f"{task}.tsv").write_text("input\nBo Berg\n")
        asked = ["--task", task, "--in", tmp_path / f"{task}.tsv"]
        command("predict", "--from", run, *asked, "--out", tmp_path / f"{task}-answers.tsv")
    command("add-tasks", run, "--adapted", model, "--out", tmp_path / "more")
    more, texts = load_run(tmp_path / "more"), ["Bo Berg", "Anna sees Rome"]
    assert more.predict("new", texts) == load_run(model).predict("new", texts)
    assert more.predict("trees", texts) == load_run(run).predict("trees", texts)
    for name in ("plot", "explore", "ablate"):
        command(name, run)
    export = ["export", run, "--task", "ner", "--out", tmp_path / "out"]
    if file == "skills/adapter_pfeiffer.yaml":
        with pytest.raises(Refused, match=r"[Uu]se the run itself"):
            command(*export)
    else:
        command(*export)
    with pytest.raises(Refused, match="these tasks have heads"):
        command("merge-task", run, "--task", "ner", "--out", tmp_path / "merged")

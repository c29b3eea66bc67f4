"""`mttl train --dry-run` and `--print-config`: what a training would do, before it is started."""

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.command import read_csv
from mttl.assembly.model import build_model
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands import train
from mttl.config.load import load_any_config, load_config


def told(capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, str]:
    """Return the cells of a dry run by their heads."""
    assert train.main([*given, "--dry-run"]) == 0
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    cells: dict[str, str] = {}
    last = ""
    for head, cell in lines:
        last = head.strip() or last  # a cell may have several lines
        cells[last] = f"{cells.get(last, '')} {cell.strip()}".strip()
    return cells


def test_a_dry_run_foretells_the_run(config: Path, whole: RunFolder, tmp_path, capsys) -> None:
    found = told(capsys, "-c", str(config), "-k", f"run.dir={tmp_path / 'runs'}")
    settings = load_config(str(config))
    model = build_model(settings, ["a", "b", "c"]).model
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(n for n, needed in sizes if needed)
    assert found["parameters"] == f"{trained:,} of {sum(n for n, _ in sizes):,} are trained"
    assert found["steps"] == read_csv(whole.metrics)[-1]["step"]
    size = settings.data.batch_size
    assert found["rows per step"] == f"{size} = 1 × {size} (1 process)"
    assert re.fullmatch(r"\d\.\d\d GiB per process .*", found["memory"])
    assert re.match(r"[\d.e-]+ s per step, about \d+ minutes for all; from 6 steps", found["time"])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".cache"]


CLUSTER = ["trainer.accelerator=gpu", "trainer.num_nodes=2", "trainer.devices=8"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (["data.global_batch_size=32"], "32 = 16 × 2 (16 processes)"),
        (
            ["data.global_batch_size=64", "data.batch_size=2"],
            "64 = 16 × 4 (16 processes, in 2 batches of at most 2)",
        ),
        (
            ["data.batch_size=2", "trainer.accumulate_grad_batches=3"],
            "96 = 16 × 6 (16 processes, in 3 batches of at most 2)",
        ),
    ],
)
def test_a_cluster_is_planned_on_a_machine_without_its_devices(
    settings, rows, config: Path, folder: Path, capsys
) -> None:
    own = ["trainer.max_epochs=5", "trainer.max_steps=-1", f"run.dir={folder / 'dry'}"]
    found = told(capsys, "-c", str(config), "-k", *CLUSTER, *settings, *own)
    assert found["rows per step"] == rows
    n_rows = int(found["tasks"].split()[2].replace(",", ""))
    assert found["steps"] == str(5 * -(-n_rows // int(rows.split()[0])))
    assert found["time"].startswith("not measured: section trainer: ")


def test_the_merged_configuration_is_printed_with_its_sources(config, tmp_path, capsys) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "optim: {label_smoothing: 0.5}\ndata: {prefix: auto, metrics: {a b: EM, 'null': EM}}\n"
    )
    given: list[Any] = ["-c", f"{config}+{other}", "-k", "skills.rank=1", "run.dir=x y"]
    assert train.main([*given, "--print-config"]) == 0
    printed = capsys.readouterr().out
    written = tmp_path / "printed.yaml"
    written.write_text(printed)
    assert load_any_config([str(written)]) == load_any_config([str(config), str(other)], given[3:])
    sources = dict(re.findall(r"^ *(\S.*?): .*? # (.*)$", printed, re.MULTILINE))
    assert sources["label_smoothing"] == sources["a b"] == str(other)
    assert sources["rank"] == "-k"
    assert sources["prefix"] == f"{other} (auto)"
    assert sources["max_input_length"] == str(config)
    assert sources["token_budget"] == "default"
    assert sources["name"] == "names of the files"

"""The scripts in examples/ start a training with the settings of its configuration."""

import os
import subprocess
from pathlib import Path

import pytest

from helpers.command import ROOT
from mttl.commands import train
from mttl.config.load import load_any_config


def started_by(script: str, tmp_path: Path, launcher: str, *given: str, **more: str) -> list[str]:
    """Return the arguments of the training that a script starts with a launcher."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / launcher).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / launcher).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    command = [str(ROOT / "examples" / script), *given]
    environment = {**os.environ, "PATH": path, "RUNS": str(tmp_path), **more}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    words = ran.stdout.splitlines()
    return words[words.index("pl_train.py") + 1 :]


SLURM = {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("more", "config"),
    [({}, "crossfit_paper.yaml"), ({"CONFIG": "babyai_paper.yaml"}, "babyai_paper.yaml")],
)
@pytest.mark.parametrize("script", ["slurm.sh", "torchrun.sh"])
def test_paper_settings_stay_on_a_cluster(script, more, config, tmp_path: Path) -> None:
    if script == "slurm.sh":
        words = started_by(script, tmp_path, "srun", **SLURM, **more)
    else:
        more = {"CONFIG": config, **more}
        words = started_by(script, tmp_path, "torchrun", "0", "2", "node0", **more)
    options = train.main.parse(words)
    found, paper = load_any_config(options.config, options.override), load_any_config(config)
    assert found.trainer.num_nodes * found.trainer.devices == 16
    place = {"num_nodes", "devices", "accelerator", "strategy"}
    kept = [one.model_dump(exclude={"run": True, "trainer": place}) for one in (found, paper)]
    assert kept[0] == kept[1]
    shared = found.data.global_batch_size if "data" in kept[0] else found.rl.global_n_slots
    assert shared == (32 if "data" in kept[0] else 8)

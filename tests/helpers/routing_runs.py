"""Folders of runs made up for figures and pages: what a training leaves behind of its routing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from helpers.command import note_again
from mttl.checkpoints.inventory_files import FORMAT_VERSION
from mttl.config.load import dump_config, load_config
from mttl.routing import PolytroponRouter

TASKS = ("past", "plural", "clock", "date")
GROUPS = ("encoder.block.0.q", "encoder.block.0.v", "decoder.block.0.q", "decoder.block.0.v")
CATEGORIES = {"past": "words", "plural": "words", "clock": "time", "date": "time"}


def router_of(n_groups: int, n_tasks: int, n_skills: int, seed: int, **options: Any):
    """Return a Polytropon router whose logits are spread."""
    router = PolytroponRouter(n_groups, n_tasks, options.pop("n_heads", 1), n_skills, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        router.logits.copy_(2 * torch.randn(router.logits.shape, generator=generator))
    return router


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Write a run's folder: plots, metrics, the saved router, and a configuration with its gym."""

    def write(
        folder: Path,
        *,
        tasks: Sequence[str] = TASKS,
        groups: Sequence[str] = GROUPS,
        n_skills: int = 3,
        seed: int = 0,
        kind: str = "polytropon",
        weights: np.ndarray | None = None,
        history: bool = True,
        **options: Any,
    ) -> Path:
        router = router_of(len(groups), len(tasks), n_skills, seed, **options)
        matrix = router.matrix().transpose(1, 2).flatten(0, 1).detach().numpy()
        n_heads = len(matrix) // len(groups)
        names = [f"{group}/head {head}" for group in groups for head in range(n_heads)]
        probabilities = router.probabilities().transpose(1, 2).flatten(0, 1).detach().numpy()
        if weights is not None:
            matrix = probabilities = weights
        weights = matrix
        arrays = {"tasks": np.array(tasks), "groups": np.array(names if n_heads > 1 else groups)}
        plots = folder / "plots"
        plots.mkdir(parents=True)
        np.savez(plots / "routing.npz", weights=weights, probabilities=probabilities, **arrays)
        if history:
            past = np.stack([np.full_like(weights, 1 / weights.shape[2]), weights])
            steps = np.array([0, 500])
            np.savez(plots / "routing_history.npz", steps=steps, weights=past, **arrays)
            lines = ["step,routing/usage,routing/encoder/usage,train/loss"]
            lines += ["0,1.0,1.0,", "100,,,3.5", "500,0.9,0.8,"]
            (folder / "metrics.csv").write_text("\n".join(lines) + "\n")

        skills = folder / "skills"
        skills.mkdir()
        save_file({"q.A": torch.zeros(1)}, skills / "skills.safetensors")
        save_file(router.state_dict(), skills / "router.safetensors")
        (skills / "tasks.json").write_text(json.dumps(list(tasks)))
        meta = {
            "format_version": FORMAT_VERSION,
            "backbone": {"name": "random", "trained": False, "fingerprint": "0" * 64},
            "libraries": {},
            "settings": {
                "router": {
                    "kind": kind,
                    "shared_skill": router.shared_skill,
                    "straight_through": router.straight_through,
                }
            },
        }
        (skills / "meta.json").write_text(json.dumps(meta))
        note_again(skills)

        gym = folder / "gym"
        gym.mkdir()
        rows = [f"{task},EM,{CATEGORIES[task]}\n" for task in tasks if task in CATEGORIES]
        (gym / "TASKS.csv").write_text("task,metric,category\n" + "".join(rows))
        config = load_config("crossfit.yaml", [f"data.dir={gym}"])
        (folder / "config.yaml").write_text(dump_config(config))
        return folder

    return write

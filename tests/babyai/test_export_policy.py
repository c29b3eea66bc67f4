"""`mttl export` of a policy: plain files with the logits of the run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.babyai import TINY

pytest.importorskip("minigrid", reason="needs the extra `babyai`")

from envs.vector import make_vector_env
from envs.vocabulary import encode
from mttl.babyai.build_policy import build_policies, load_policies, policy_settings
from mttl.babyai.rollouts import Agent
from mttl.checkpoints.saved_inventory import save_inventory
from mttl.commands import export
from mttl.config.babyai_schema import BabyAIConfig
from mttl.io.errors import MttlError

LEVEL = "MiniGrid-Empty-5x5-v0"


def write_run(folder: Path) -> Path:
    config, levels = BabyAIConfig.model_validate(TINY), ("GoToObj", LEVEL)
    torch.manual_seed(1)
    model, settings = build_policies(config, levels), policy_settings(config).model_dump()
    facts: dict[str, Any] = {"backbone_name": "BabyAI policy", "backbone_trained": True}
    save_inventory(folder / "skills", model, levels, **facts, settings=settings)
    return folder


def test_an_exported_policy_has_the_logits_of_the_run(tmp_path: Path) -> None:
    """Bit for bit, over an episode's end; the code runs without the package."""
    run, out = write_run(tmp_path / "run"), tmp_path / "out"
    assert export.main([str(run), "--task", LEVEL, "--out", str(out)]) == 0
    seen, model = [], load_policies(run)[0]
    envs = make_vector_env([LEVEL], 1, seed=1, max_steps=3)
    agent, observation, begins = Agent(model, [1], 1), envs.reset(), np.ones((1, 1), bool)
    missions = "get to the green goal square", "go to the red ball"
    for step in range(5):
        observation.mission[:] = encode(missions[step > 2], LEVEL)
        with torch.no_grad():
            logits = agent(observation, begins)[0][0, 0]
        one = {"image": observation.image[0, 0].tolist(), "mission": missions[step > 2]}
        seen.append([one, bool(begins.item()), logits.tolist()])
        change = envs.step(np.full((1, 1), step))
        observation, begins = change.observation, change.terminated | change.truncated
    assert [begins for _, begins, _ in seen] == [True, False, False, True, False]
    code = (
        "import json, sys\nsys.modules['mttl'] = sys.modules['envs'] = None\nimport policy\n"
        "player = policy.Player('.')\n"
        "print(json.dumps([player(one, begins=b).tolist() for one, b in json.load(sys.stdin)]))"
    )
    given = json.dumps([pair for *pair, _ in seen])
    environment = {**os.environ, "PYTHONPATH": str(out)}
    told = subprocess.run(
        [sys.executable, "-c", code],
        **{"input": given, "capture_output": True, "text": True, "check": True},
        cwd=out,
        env=environment,
    )
    assert json.loads(told.stdout) == [logits for *_, logits in seen]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--task", "MiniGrid-Empty-5x5-v1"], "has no level 'MiniGrid-Empty-5x5-v1'. Did you"),
        (["--task", LEVEL, "--rank", "2"], "has policies, which have no --rank; export the"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, given: list[str], message: str) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(MttlError, match=message):
        export.main([str(run), *given, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()

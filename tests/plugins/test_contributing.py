"""The examples of CONTRIBUTING.md: a router and a kind of skill, each a file and a line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.command import ROOT

USE = """
import runpy
import torch
runpy.run_module("mttl.plugins.describe", run_name="__main__")
from mttl.assembly.build_router import build_router
from mttl.config.load import load_config
from mttl.config.reference import reference
from mttl.skills import KINDS

open("own.yaml", "w").write(
    "router: {kind: softmax, temperature: 2}\\nskills: {kind: affine, scale: 0.5}"
)
config = load_config("crossfit.yaml+own.yaml")
router = build_router(config.router, 2, ["a", "b"], 1, 3)
assert router.matrix().shape == (2, 2, 1, 3)
new = router.for_new_tasks(5)
assert new.temperature == 2 and new.matrix().shape == (2, 5, 1, 3)
assert torch.allclose(new.logits, router.logits.mean(1, keepdim=True).expand_as(new.logits))
skills = KINDS["affine"](4, 6, 3, scale=config.skills.scale)
x, y = torch.randn(2, 5, 4), torch.randn(2, 5, 6)
merged = skills.merge(torch.full((2, 1, 3), 1 / 3))
assert torch.equal(skills.combine(x, y, merged), y)
for words in ("router.temperature", "Mixes skills by the softmax", "`affine`: Skills that scale"):
    assert words in reference(), words
"""


def test_a_router_and_a_skill_are_a_file_and_a_line_each(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "mttl", tmp_path / "mttl", ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = [
        diff for diff in re.findall(r"```diff\n(.*?)```", text, re.DOTALL) if "parts.py" in diff
    ]
    assert len(found) == 2
    for diff in found:
        command = ["git", "apply", "-"]
        subprocess.run(command, input=diff, text=True, check=True, cwd=tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", USE], check=True, cwd=tmp_path, env=environment)

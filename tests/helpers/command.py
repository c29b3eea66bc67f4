"""The training command, in this process or in one of its own, and what it wrote."""

import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from mttl.checkpoints.inventory_files import CHECKSUMS, checksums
from mttl.checkpoints.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "pl_train.py"


def load_recipe(path: Path = RECIPE) -> ModuleType:
    """Import a script outside of the package; it can import its neighbours."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(
    *words: str | Path, cwd: Path = ROOT, first: Path = ROOT
) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own, which looks for packages in a folder first."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(first), str(ROOT)])}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


def arguments(config: Path | str, name: str, overrides: tuple[str, ...], resume: bool) -> list[str]:
    return [
        *("-c", str(config), "-k", f"run.name={name}", *overrides),
        *(["--resume"] if resume else []),
    ]


def train(config: Path | str, name: str, *overrides: str, resume: bool = False) -> RunFolder:
    """Run the command here; its run folder is ``runs/<name>`` beside the first file."""
    status = load_recipe().main(arguments(config, name, overrides, resume))
    assert status == 0
    return RunFolder(Path(str(config).split("+")[0]).parent / "runs" / name)


def start(
    config: Path | str, name: str, *overrides: str, resume: bool = False
) -> "subprocess.Popen[str]":
    """Start the command in a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(RECIPE), *arguments(config, name, overrides, resume)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )


def file_sums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(path: Path, name: str) -> dict[int, float]:
    """Return a column of a metrics file by step, where it has values."""
    return {int(row["step"]): float(row[name]) for row in read_csv(path) if row.get(name)}


def note_again(skills: Path) -> None:
    """Write the checksums of what a folder ``skills/`` holds, which a test has changed."""
    path = skills / "meta.json"
    meta = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(meta | {CHECKSUMS: checksums(skills, meta)}), "utf-8")

"""Every shipped fragment with every command, on two backbones: it works, or says why not."""

import shutil
from collections.abc import Iterator

import pytest

from matrix.expected import AFTER, BACKBONES, COLUMNS, files, reason
from matrix.toy import Refused, Run, World

CELLS = [(file, backbone) for file in files() for backbone in BACKBONES]
# One of every folder, and each pair of a command with a backbone; the rest is `-m matrix`.
FEW = (
    ("router/token_hybrid.yaml+experts/adapter.yaml+skills/adapter_parallel.yaml", "t5"),
    ("skills/prefix.yaml+router/multi_head.yaml+optim/adam.yaml", "llama"),
    ("skills/mam.yaml+router/smear.yaml+adapt/mean_row.yaml", "t5"),
    ("router/token_top2.yaml+optim/adafactor.yaml", "llama"),
)
WORK = ("train", "resume", "adapt", "predict", "explore", "add-tasks")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("matrix"))
    yield world
    shutil.rmtree(world.root)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("file", "backbone"), CELLS)
def test_a_file_with_every_command(world: World, file: str, backbone: str) -> None:
    run = Run(world, (file,), backbone, f"{file}-{backbone}".replace("/", "-"))
    wrong = [
        f"{column}: {told}"
        for column in COLUMNS
        if (told := mistake(run, column, reason(file, backbone, column)))
    ]
    shutil.rmtree(run.folder, ignore_errors=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("names", "backbone"), FEW)
def test_files_together(world: World, names: str, backbone: str) -> None:
    run = Run(world, tuple(names.split("+")), backbone, f"{names}-{backbone}".replace("/", "-"))
    for column in WORK:
        run.check(column)


def mistake(run: Run, column: str, expected: str | None) -> str | None:
    """Return what is wrong with a cell, or None."""
    if expected == AFTER:
        return None
    try:
        run.check(column)
    except Refused as error:
        told = str(error)
        return None if expected is not None and expected in told else f"refused: {told}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None if expected is None else f"works, and '{expected}' was expected"

"""Every shipped fragment with every command, on two backbones: it works, or says why not."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.expected import AFTER, reasons
from matrix.pairs import Combination, combinations
from matrix.table import PAGE, page
from matrix.toy import BACKBONES, COLUMNS, Refused, Run, World, files

CELLS = [(file, backbone) for file in files() for backbone in BACKBONES]


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
    check(run, COLUMNS)


@pytest.mark.parametrize("one", list(combinations()), ids=lambda one: "+".join(one.names))
def test_files_together(world: World, one: Combination) -> None:
    label = "-".join(one.names).replace("/", "-")
    check(Run(world, one.names, one.backbone, label), one.columns)


def check(run: Run, columns: tuple[str, ...]) -> None:
    """Run commands, each of which works or is refused for the expected reason."""
    found = [f"{name}: {error}" for name in columns if (error := mistake(run, name))]
    shutil.rmtree(run.folder, ignore_errors=True)
    assert not found, "\n".join(found)


def mistake(run: Run, column: str) -> str | None:
    """Return what is wrong with a cell, or None."""
    expected = reasons(run.names, run.given, column)
    if expected == [AFTER]:
        return None
    try:
        run.check(column)
    except Refused as error:
        text = str(error)
        return None if any(reason in text for reason in expected) else f"refused: {text}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return f"works, and {expected} was expected" if expected else None


def test_the_page_is_current() -> None:
    assert Path(PAGE).read_text(encoding="utf-8") == page(), "run python tests/matrix/table.py"

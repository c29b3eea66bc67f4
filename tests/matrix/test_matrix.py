"""Every shipped fragment with every command, on two backbones: it works, or says why not."""

import shutil
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from matrix.expected import AFTER, BACKBONES, COLUMNS, FOLDERS, config_of, files, reasons
from matrix.toy import MEMBERS, Refused, Run, World
from mttl.io.errors import ConfigError

CELLS = [(file, backbone) for file in files() for backbone in BACKBONES]
TURNS = [(name,) for name in COLUMNS if name not in ("train", "adapt", "add-tasks")]
TURNS.append(("adapt", "add-tasks"))
EACH = 2  # turns of a combination
ALONE = ["aggregation/fusion.yaml", *(f"router/{one}.yaml" for one in (*MEMBERS, "token_loramoe"))]


def combinations() -> Iterator[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Return files, a backbone and commands in which each router and each command takes part.

    Beside a router stand skills, experts where tokens are routed, an optimizer and settings of
    adaptation. Files, backbones and commands take turns, which pairs folders with commands. What
    is refused before training gives way to others.
    """
    every = {name: [f for f in files() if f.startswith(f"{name}/")] for name in FOLDERS}
    ring = {name: cycle(found) for name, found in every.items()}
    turns = cycle(TURNS)
    for number, router in enumerate(every["router"] + every["aggregation"]):
        first, rests, skills = [router], [[]], [""]
        if router not in ALONE:
            skills = islice(ring["skills"], len(every["skills"]))
            first += [next(ring["experts"])] if router.startswith("router/token_") else []
            optim, adapt = next(ring["optim"]), next(ring["adapt"])
            rests = [[optim, adapt], [optim], [adapt], []]
        tried = (
            (tuple(filter(None, [*order, *rest])), BACKBONES[(number + more) % 2])
            for skill in skills
            for rest in rests
            for order in ([skill, *first], [*first, skill])
            for more in range(len(BACKBONES))
        )
        names, backbone = next(pair for pair in tried if allowed(*pair))
        columns = [column for turn in islice(turns, EACH) for column in turn]
        yield names, backbone, ("train", *columns)


def allowed(names: tuple[str, ...], backbone: str) -> bool:
    """Tell whether files go together and train on a backbone."""
    try:
        config_of(names)
    except ConfigError:
        return False
    return not reasons(names, backbone, "train")


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


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("names", "backbone", "columns"),
    [pytest.param(*one, id="+".join(one[0])) for one in combinations()],
)
def test_files_together(world: World, names, backbone, columns) -> None:
    check(Run(world, names, backbone, "-".join(names).replace("/", "-")), columns)


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

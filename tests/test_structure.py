"""The structure of the packages: no circles, no name twice, no crowded room, light imports."""

from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import grimp
import pytest

import mttl
from helpers.command import python
from mttl.__main__ import ALL as COMMANDS

PACKAGE = Path(mttl.__file__).parent
MOST_FILES = 28


def test_no_file_imports_the_room_it_lies_in():
    """Such a circle runs through an ``__init__``, where the contracts of imports do not look."""
    graph = grimp.build_graph("mttl", "envs", cache_dir=None)
    circles = [
        (file, room)
        for file in graph.modules
        for room in graph.find_modules_directly_imported_by(file)
        if file.startswith(f"{room}.")
    ]
    assert circles == []


def test_no_two_files_have_one_name():
    """A command's file is named after the command, and may share it with what it calls."""
    own = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    names = Counter(path.name for path in own if path.parent.name != "commands")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_room_is_crowded():
    """Of commands, which have a file each, the others count."""
    rooms = Counter(
        str(path.parent.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
        and not (path.parent.name == "commands" and path.stem in COMMANDS.values())
    )
    assert {room: count for room, count in rooms.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("mttl.tasks", {"torch", "torchmetrics", "transformers", "datasets"}),
        ("envs", {"torch", "mttl"}),
        ("mttl.config", {"torch", "numpy", "transformers", "pytorch_lightning", "datasets"}),
    ],
)
def test_a_room_is_imported_without(package: str, absent: set[str]):
    """Who builds tasks, plays environments or reads a configuration would wait for them."""
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module("{package}")
for module in pkgutil.walk_packages(package.__path__, "{package}."):
    importlib.import_module(module.name)
print(sorted({absent!r} & set(sys.modules)))
"""
    assert python("-c", code).stdout == "[]\n"


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config):
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in Path(__file__).parent.rglob("test_*.py")}
    left_out = [folder for folder in folders if any(fnmatch(folder.name, p) for p in patterns)]
    assert left_out == []

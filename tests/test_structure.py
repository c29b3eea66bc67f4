"""The structure of the packages: no circles, light imports."""

from fnmatch import fnmatch
from pathlib import Path

import grimp
import pytest

from helpers.command import python


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

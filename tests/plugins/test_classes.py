"""Custom classes are found by their names, and imported only if trusted."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mttl.commands.options import make_parser
from mttl.plugins.classes import METRICS, ROUTERS, TRUST, PluginError, find_class, make, trust

ROUTER = """
from mttl.routing.task.fixed import FixedRouter

class MyRouter(FixedRouter):
    def __init__(self, n_groups, n_tasks, *, seed: int = 3, **rest):
        if seed < 0:
            raise ValueError("seed must be at least 0")
        self.seen_seed = 1 / seed

class Other:
    pass

number = 3
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write modules into the working directory, and forget them afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(TRUST, "")

    def write(name: str, text: str = ROUTER) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["mine_a:MyRouter", "./mine_a.py:MyRouter"])
def test_a_class_is_found_in_the_working_directory(write: Write, name: str) -> None:
    write("mine_a.py")
    found = find_class(ROUTERS, name, trusted=True)
    assert found.__name__ == "MyRouter"
    # Once it is imported, a file of a run may name it.
    assert find_class(ROUTERS, name) is found


def test_what_a_file_names_is_not_run(write: Write) -> None:
    write("mine_b.py", "open('ran', 'w')\n" + ROUTER)
    for name in ("mine_b:MyRouter", "./mine_b.py:MyRouter"):
        with pytest.raises(PluginError, match="' is code named by a saved file, which is not run"):
            find_class(ROUTERS, name)
    with pytest.raises(PluginError, match="is code"):
        find_class(ROUTERS, "mine_b_and_more:MyRouter")
    assert not Path("ran").exists()
    trust("mine_b")
    assert find_class(ROUTERS, "mine_b:MyRouter")
    assert Path("ran").exists()


def test_a_trusted_package_holds_trusted_modules_and_others_are_not(write: Write) -> None:
    write("pack_c/__init__.py", "")
    write("pack_c/inner.py")
    write("pack_cc.py")
    trust("json")
    trust("pack_c")
    assert find_class(ROUTERS, "pack_c.inner:MyRouter")
    with pytest.raises(PluginError, match="' is code named by a saved file, which is not run"):
        find_class(ROUTERS, "pack_cc:MyRouter")


def test_a_trusted_file_is_found_from_elsewhere(write, tmp_path, monkeypatch) -> None:
    path = write("parts/mine_d.py")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    parser = make_parser("", None)
    monkeypatch.setenv(TRUST, "parts/mine_d.py")
    with pytest.raises(PluginError, match=r"'./parts/mine_d\.py' does not exist in .*--trust"):
        find_class(ROUTERS, "./parts/mine_d.py:MyRouter")
    assert vars(parser.parse_args(["--trust", str(path)])) == {}
    assert find_class(ROUTERS, "./parts/mine_d.py:MyRouter").__name__ == "MyRouter"


def test_an_installed_package_offers_short_names(write, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write("mine_e.py")
    write("mine_e-1.0.dist-info/METADATA", "Name: mine_e\nVersion: 1.0\n")
    write("mine_e-1.0.dist-info/entry_points.txt", "[mttl.routers]\nnearest = mine_e:MyRouter\n")
    assert ROUTERS.is_plugin("nearest")
    assert not METRICS.is_plugin("nearest")
    # Installed is trusted, by the short name and by the long one.
    assert find_class(ROUTERS, "mine_e:MyRouter") is find_class(ROUTERS, "nearest")
    with pytest.raises(PluginError, match=r"entry point of the group .*Did you mean 'nearest'"):
        find_class(ROUTERS, "nearst")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone_f:MyRouter", None, r"no module 'gone_f'.*PYTHONPATH=FOLDER.*\./my_router\.py"),
        ("./gone_f.py:MyRouter", None, r"'./gone_f\.py' does not exist"),
        ("mine_f:MyRuter", ROUTER, "'mine_f' has no 'MyRuter'. Did you mean 'MyRouter'"),
        ("mine_f:Other", ROUTER, "is a class; a task router must be a subclass"),
        ("mine_f:number", ROUTER, "is int; a task router must be a subclass of"),
        ("mine_f:", ROUTER, "' must be a task router as module:Class, or an entry point of the"),
        ("mine_f:X", "import gone_g\n", r"ModuleNotFoundError: .*gone_g.*mine_f\.py, line 1"),
        ("./mine_f.py:X", "x = 1\ny = 1 / 0\n", r"ZeroDivisionError.*mine_f\.py, line 2"),
        (
            "mine_f:Half",
            "from mttl.routing import TaskRouter\nclass Half(TaskRouter): pass\n",
            "'mine_f:Half' must define forward, like every TaskRouter",
        ),
    ],
)
def test_mistakes_are_answered(write: Write, name: str, text: str | None, message: str) -> None:
    if text is not None:
        write("mine_f.py", text)
    with pytest.raises(PluginError, match=message):
        find_class(ROUTERS, name, trusted=True)


def test_what_goes_wrong_inside_is_told_with_its_place(write: Write) -> None:
    write("mine_g.py")
    found = find_class(ROUTERS, "mine_g:MyRouter", trusted=True)
    with pytest.raises(PluginError, match=r"MyRouter failed: ZeroDivision.*mine_g\.py"):
        make(found, {"n_groups": 1, "n_tasks": 2, "n_skills": 3}, {"seed": 0})
    with pytest.raises(ValueError, match=r"^seed must be at least 0"):
        make(found, {"n_groups": 1, "n_tasks": 2}, {"seed": -1})

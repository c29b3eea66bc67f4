"""A stand-in of the part of W&B's interface that is used: what is logged stays in lists."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class FakeRun:
    offline = True

    def __init__(self, given: dict[str, Any], id: str) -> None:
        self.given, self.id = given, id
        self.config = given["config"]
        self.logged: list[dict[str, Any]] = []
        self.defined: list[tuple] = []
        self.exit_code: int | None = None
        self.fails_with: Exception | None = None
        folder = Path(given["dir"]) / "wandb"
        (folder / f"offline-run-2026010{len(list(folder.iterdir())) + 1}_000000-{id}").mkdir()

    def define_metric(self, *names: str, **options: Any) -> None:
        self.defined.append((*names, options))

    def log(self, values: dict[str, Any]) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        self.logged.append(values)

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code

    def column(self, name: str) -> dict[int, Any]:
        return {row["step"]: row[name] for row in self.logged if name in row}


def make_wandb(refusal: Exception | None = None) -> Any:
    """Return a module of this interface.

    Args:
        refusal: What starting a run ends in.
    """
    module: Any = ModuleType("wandb")
    module.__spec__ = SimpleNamespace(name="wandb")
    module.runs = []

    def init(**given: Any) -> FakeRun:
        assert set(given) <= {"project", "name", "dir", "config", "settings", "id", "resume"}
        if refusal is not None:
            raise refusal
        module.runs.append(FakeRun(given, given.get("id", f"fake{len(module.runs)}")))
        return module.runs[-1]

    module.init = init
    module.Settings = lambda *, silent: SimpleNamespace(silent=silent)
    module.Image = lambda pixels: SimpleNamespace(pixels=pixels)
    module.Table = lambda *, columns, data: SimpleNamespace(columns=columns, data=data)
    return module


def install(monkeypatch: Any, refusal: Exception | None = None) -> Any:
    """Put such a module where `import wandb` finds it."""
    module = make_wandb(refusal)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module

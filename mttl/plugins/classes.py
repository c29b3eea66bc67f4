"""Find plug-in classes by name, and import trusted ones.

A name is ``package.module:Class``, ``./file.py:Class``, or an entry point of an installed package
(groups ``mttl.routers``, ``mttl.skills`` etc., see `FAMILIES`).

Importing a module runs its code. It is imported if the user's configuration names it, if an
installed package provides it as an entry point, or if it is trusted (``--trust``, or the
environment variable ``MTTL_TRUST``). A class named only in a run's file must be in an already
imported module.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mttl.io.errors import ConfigError, MttlError, nearest

# Trusted modules, packages and files, separated by commas.
TRUST = "MTTL_TRUST"


class PluginError(ConfigError):
    """A plug-in class that is missing, unsuitable or not trusted."""


@dataclass(frozen=True)
class Family:
    """A family of plug-ins."""

    name: str  # name of the entry point group after ``mttl.``
    title: str  # title of a member, for messages
    base: str  # base class, as ``module:Class``
    given: tuple[str, ...] = ()  # arguments supplied by the program; others are settings

    def entries(self) -> dict[str, str]:
        """Return the entry points of installed packages by short name, as ``module:Class``."""
        found = importlib.metadata.entry_points(group=f"mttl.{self.name}")
        return {entry.name: entry.value for entry in found}

    def is_plugin(self, name: object) -> bool:
        """Return whether a name denotes a plug-in class; names with settings, ``x y=z``, do not."""
        if not isinstance(name, str) or re.search(r"\s\w+=", name):
            return False
        return ":" in name or name in self.entries()


ROUTERS = Family(
    *("routers", "a task router", "mttl.routing.task.task_router:TaskRouter"),
    ("n_groups", "n_tasks", "n_heads", "n_skills", "n_features"),
)
SKILLS = Family(
    *("skills", "a kind of skill", "mttl.skills.inventory:Inventory"),
    ("in_features", "out_features", "n_skills", "n_heads"),
)
TOKEN_ROUTERS = Family(
    *("token_routers", "a token router", "mttl.routing.token.token_router:TokenRouter"),
    ("in_features", "n_experts", "balance", "bias", "vocabulary_size"),
)
METRICS = Family("metrics", "a metric", "torchmetrics:Metric")
QUESTIONS = Family("questions", "a question generator", "mttl.metrics.q2:Questions")
ANSWERS = Family("answers", "a question answerer", "mttl.metrics.q2:Answers")
LOSSES = Family("losses", "a loss", "mttl.training.loss:TokenLoss")
CALLBACKS = Family("callbacks", "a callback", "pytorch_lightning:Callback")
LEVELS = Family("levels", "a level", "gymnasium:Env")
FAMILIES = (ROUTERS, SKILLS, TOKEN_ROUTERS, METRICS, QUESTIONS, ANSWERS, LOSSES, CALLBACKS, LEVELS)


def find_class(family: Family, name: str, *, trusted: bool = False) -> type[Any]:
    """Return a class by its name in a setting.

    It is ``trusted`` if the user named it, in contrast to a run's file. Raises a `PluginError` if
    it is missing, cannot be imported, is not trusted, or is unsuitable.
    """
    entries = family.entries()
    place = name if ":" in name else entries.get(name, "")
    module_name, _, attribute = place.rpartition(":")
    if not module_name or not attribute:
        raise PluginError(
            f"'{name}' must be {family.title} as module:Class, or an entry point of the group "
            f"mttl.{family.name}.{nearest(name, entries)}"
        )
    module = _loaded(module_name)
    if module is None:
        if not (trusted or place in entries.values() or _is_trusted(module_name)):
            raise PluginError(
                f"'{name}' is code named by a saved file, which is not run automatically. If you "
                f"trust it, name it in your configuration (-c), or add --trust {module_name} (in "
                f"the environment {TRUST}={module_name}; in Python, import it first)"
            )
        module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PluginError(f"'{module_name}' has no '{attribute}'.{nearest(part, vars(found))}")
        found = getattr(found, part)
    _check(family, name, found)
    return found


def make(cls: type[Any], given: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Build an object of a class from settings, and the ``given`` arguments that it declares.

    Raises a `ValueError` if the class rejects a value, and a `PluginError` if a plug-in class
    raises another error.
    """
    declared = {item.name for _, item in arguments(cls)}
    with plugin_call(cls, ValueError):
        return cls(**{k: v for k, v in given.items() if k in declared}, **settings)


def arguments(cls: type[Any]) -> Iterator[tuple[type[Any], inspect.Parameter]]:
    """Yield the arguments of a constructor, each with the class that declares it.

    If it accepts ``**settings``, the keyword-only ones of its base follow.
    """
    owner = next(kind for kind in cls.__mro__ if "__init__" in vars(kind))
    listed = list(inspect.signature(owner.__init__).parameters.values())[1:]
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    yield from ((owner, item) for item in listed if item.kind not in many)
    if listed and listed[-1].kind is inspect.Parameter.VAR_KEYWORD and owner is not object:
        base = owner.__mro__[1]
        only = inspect.Parameter.KEYWORD_ONLY
        yield from ((kind, item) for kind, item in arguments(base) if item.kind is only)


def trust(names: str) -> None:
    """Trust modules, packages or files, separated by commas, in this process and its children."""
    before = os.environ.get(TRUST)
    os.environ[TRUST] = f"{before},{names}" if before else names


@contextmanager
def plugin_call(own: object, *but: type[Exception]) -> Iterator[None]:
    """Convert errors of a plug-in object or class into a `PluginError` with file and line.

    Errors of the classes ``but`` are not converted.
    """
    owner = own if isinstance(own, type) else type(own)
    try:
        yield
    except (MttlError, MemoryError, *but):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # Communication errors between processes are not errors of the class.
        if owner.__module__.startswith("mttl.") or "torch/distributed" in last.filename:
            raise
        raise PluginError(f"{owner.__name__} failed: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return an error with its file and line in plug-in code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    last = (own or frames)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def raised_in_plugin(error: BaseException) -> str | None:
    """Return the plug-in class that raised an error, and the error; None for others."""
    places = (family.base.partition(":") for family in FAMILIES)
    loaded = (getattr(sys.modules.get(module), name, None) for module, _, name in places)
    bases = tuple(base for base in loaded if base is not None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, bases) and not _is_library(frame.f_code.co_filename):
            return f"{type(owner).__name__} failed: {describe_error(error)}"
    return None


def _is_library(file: str) -> bool:
    return any(
        part in file for part in ("site-packages", "<frozen", str(Path(__file__).parents[1]))
    )


def _trusted_names() -> list[str]:
    return [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]


def _is_trusted(module_name: str) -> bool:
    listed = _trusted_names()
    if module_name.endswith(".py"):
        return _file(module_name) in [Path(name).resolve() for name in listed]
    return any(module_name == name or module_name.startswith(f"{name}.") for name in listed)


def _file(name: str) -> Path:
    """Return the path of a file, or of a trusted one whose path ends in the name."""
    path = Path(name)
    if not path.is_file():
        for trusted in map(Path, _trusted_names()):
            if trusted.parts[-len(path.parts) :] == path.parts and trusted.is_file():
                return trusted.resolve()
    return path.resolve()


def _loaded(module_name: str) -> ModuleType | None:
    if not module_name.endswith(".py"):
        return sys.modules.get(module_name)
    file, loaded = str(_file(module_name)), [*sys.modules.values()]
    return next((one for one in loaded if getattr(one, "__file__", None) == file), None)


def _import(name: str) -> ModuleType:
    here, path = str(Path.cwd()), _file(name)
    if here not in sys.path:
        sys.path.append(here)
    is_file = name.endswith(".py")
    if is_file and not path.is_file():
        raise PluginError(
            f"'{name}' does not exist in '{here}'. Run the command in its folder, correct its path "
            f"in the configuration, or add --trust FOLDER/{Path(name)}"
        )
    try:
        if not is_file:
            return importlib.import_module(name)
        spec: Any = importlib.util.spec_from_file_location(str(path), path)
        module = sys.modules[str(path)] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        sys.modules.pop(str(path), None)
        parents = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
        if isinstance(error, ModuleNotFoundError) and error.name in parents:
            raise PluginError(
                f"there is no module '{name}' in '{here}' or on Python's path. Run the command in "
                "its folder, set PYTHONPATH=FOLDER, or name its file, such as "
                "./my_router.py:MyRouter"
            ) from error
        raise PluginError(f"'{name}' cannot be imported: {describe_error(error)}") from error


def _check(family: Family, name: str, found: Any) -> None:
    base = pkgutil.resolve_name(family.base)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "a class" if isinstance(found, type) else type(found).__name__
        raise PluginError(
            f"'{name}' is {what}; {family.title} must be a subclass of "
            f"{family.base.replace(':', '.')}"
        )
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise PluginError(f"'{name}' must define {', '.join(lacking)}, like every {base.__name__}")

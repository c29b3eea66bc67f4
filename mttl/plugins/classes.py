"""Classes of one's own: found by the name that a setting gives, and never imported unasked.

A name is ``package.module:Class``, ``./file.py:Class``, or that of an entry point of an installed
package (groups ``mttl.routers``, ``mttl.skills`` and so on, see `FAMILIES`).

Importing is running. A module is imported where the user's own configuration names it, where an
installed package offers it as an entry point, or where it is trusted by name (``--trust``, or the
environment variable ``MTTL_TRUST``). What a file of a run names is looked up among the modules that
are imported already, and refused otherwise.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mttl.errors import ConfigError, MttlError, nearest

# Modules, packages and files whose code may run whoever names it, joined by commas.
TRUST = "MTTL_TRUST"


class PluginError(ConfigError):
    """A class of one's own that is missing, of the wrong kind, or not trusted."""


@dataclass(frozen=True)
class Family:
    """Classes that can take one place.

    Attributes:
        name: Of the group of entry points, after ``mttl.``.
        title: What one of them is.
        base: Their base class, as ``module:Class``.
        given: Arguments that the program supplies; all others are settings.
    """

    name: str
    title: str
    base: str
    given: tuple[str, ...] = ()

    def entries(self) -> dict[str, str]:
        """Return the entry points of installed packages: short names and ``module:Class``."""
        found = importlib.metadata.entry_points(group=f"mttl.{self.name}")
        return {entry.name: entry.value for entry in found}

    def loaded_base(self) -> type[Any] | None:
        """Return the base class where its module is loaded."""
        module, _, attribute = self.base.partition(":")
        return getattr(sys.modules.get(module), attribute, None)

    def is_plugin(self, name: object) -> bool:
        """Tell whether a name stands for a class of one's own."""
        return isinstance(name, str) and (":" in name or name in self.entries())


ROUTERS = Family(
    "routers",
    "a task router",
    "mttl.routing.task.task_router:TaskRouter",
    ("n_groups", "n_tasks", "n_heads", "n_skills", "n_features"),
)
SKILLS = Family(
    "skills",
    "a kind of skill",
    "mttl.skills.inventory:Inventory",
    ("in_features", "out_features", "n_skills", "n_heads"),
)
TOKEN_ROUTERS = Family(
    "token_routers",
    "a token router",
    "mttl.routing.token.token_router:TokenRouter",
    ("in_features", "n_experts", "balance", "bias", "vocabulary_size"),
)
METRICS = Family("metrics", "a metric", "torchmetrics:Metric")
LOSSES = Family("losses", "a loss", "mttl.training.loss:TokenLoss")
CALLBACKS = Family("callbacks", "a callback", "pytorch_lightning:Callback")
FAMILIES = (ROUTERS, SKILLS, TOKEN_ROUTERS, METRICS, LOSSES, CALLBACKS)


def find_class(family: Family, name: str, *, trusted: bool = False) -> type[Any]:
    """Return a class by the name that a setting gives.

    Args:
        family: What it has to be.
        name: ``module:Class``, ``file.py:Class``, or that of an entry point.
        trusted: Whether the user named it, and not a file of a run.

    Raises:
        PluginError: If it is missing, cannot be imported, is not trusted, or is of another
            family; the message says what to do.
    """
    entries = family.entries()
    place = name if ":" in name else entries.get(name, "")
    module_name, _, attribute = place.rpartition(":")
    if not module_name or not attribute:
        raise PluginError(
            f"'{name}' must name {family.title} as module:Class, or be an entry point of the group "
            f"mttl.{family.name}.{nearest(name, entries)}"
        )
    module = _loaded(module_name)
    if module is None:
        if not (trusted or place in entries.values() or _is_trusted(module_name)):
            raise PluginError(
                f"'{name}' is code, and code that a file names is not run by itself. If you trust "
                f"it, name it in the configuration that you give (-c), or add --trust {module_name}"
                f" ({TRUST}={module_name} in the environment; in Python, import it first)"
            )
        module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = nearest(part, (key for key in vars(found) if not key.startswith("_")))
            raise PluginError(f"'{module_name}' has no '{attribute}'.{near}")
        found = getattr(found, part)
    _check(family, name, found)
    return found


def make(cls: type[Any], given: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Build an object of a class of one's own.

    Args:
        cls: The class.
        given: What the program supplies; the class takes what it declares.
        settings: What the configuration says.

    Raises:
        ValueError: What the class says about a value.
        PluginError: If it fails otherwise.
    """
    declared = parameters(cls)
    try:
        return cls(**{k: v for k, v in given.items() if k in declared}, **settings)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise PluginError(f"{cls.__name__} cannot be made: {describe_error(error)}") from error


def parameters(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments that a class names, but for ``self``."""
    listed = list(inspect.signature(cls.__init__).parameters.values())[1:]
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {item.name: item for item in listed if item.kind not in many}


def trust(names: str) -> None:
    """Trust modules, packages or files in this process and in those that it starts.

    Args:
        names: Joined by commas.

    Raises:
        PluginError: If there is no such module or file.
    """
    for name in (given.strip() for given in names.split(",")):
        if not (Path(name).is_file() if name.endswith(".py") else _has_module(name)):
            raise PluginError(
                f"--trust '{name}': there is no such {'file' if name.endswith('.py') else 'module'}"
                f", neither in '{Path.cwd()}' nor where Python looks; name a module, a package or "
                "a file, as ./my_router.py"
            )
    before = os.environ.get(TRUST)
    os.environ[TRUST] = f"{before},{names}" if before else names


@contextmanager
def plugin_call(own: object) -> Iterator[None]:
    """Tell what a method of a class of one's own raises as a mistake in that class.

    Args:
        own: The object. What one of the program's raises is left as it is.

    Raises:
        PluginError: If it raises.
    """
    try:
        yield
    except (MttlError, MemoryError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # A process that lost another is no mistake in the class.
        if type(own).__module__.startswith("mttl.") or "torch/distributed" in last.filename:
            raise
        raise PluginError(f"{type(own).__name__} failed: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return what went wrong, and where in the code of one's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    last = (own or frames)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def raised_in_plugin(error: BaseException) -> str | None:
    """Return which class of one's own an error came through, and what went wrong in it, or None."""
    bases = tuple(base for family in FAMILIES if (base := family.loaded_base()) is not None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, bases) and not _is_library(frame.f_code.co_filename):
            return f"{type(owner).__name__} failed: {describe_error(error)}"
    return None


def _is_library(file: str) -> bool:
    return any(
        part in file for part in ("site-packages", "<frozen", str(Path(__file__).parents[1]))
    )


def _has_module(name: str) -> bool:
    """Tell whether there is a module or package, from its first part: nothing is imported."""
    first = name.partition(".")[0]
    if not first.isidentifier():
        return False
    here = importlib.machinery.PathFinder.find_spec(first, [str(Path.cwd())])
    return first in sys.modules or (here or importlib.util.find_spec(first)) is not None


def _trusted_names() -> list[str]:
    return [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]


def _is_trusted(module_name: str) -> bool:
    listed = _trusted_names()
    if module_name.endswith(".py"):
        return _file(module_name) in [Path(name).resolve() for name in listed]
    return any(module_name == name or module_name.startswith(f"{name}.") for name in listed)


def _file(name: str) -> Path:
    """Return where a file is: as named, or else where one is that is trusted and ends alike."""
    path = Path(name)
    if not path.is_file():
        for trusted in map(Path, _trusted_names()):
            if trusted.parts[-len(path.parts) :] == path.parts and trusted.is_file():
                return trusted.resolve()
    return path.resolve()


def _loaded(module_name: str) -> ModuleType | None:
    if not module_name.endswith(".py"):
        return sys.modules.get(module_name)
    path = _file(module_name)
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def _import(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    if module_name.endswith(".py"):
        return _import_file(module_name)
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        parents = [module_name.rsplit(".", n)[0] for n in range(module_name.count(".") + 1)]
        if isinstance(error, ModuleNotFoundError) and error.name in parents:
            raise PluginError(
                f"there is no module '{module_name}': it is neither in '{here}' nor on the path of "
                "Python. Start the command in its folder, set PYTHONPATH=FOLDER, install its "
                "package, or name its file, as ./my_router.py:MyRouter"
            ) from error
        raise PluginError(f"'{module_name}' cannot be imported: {describe_error(error)}") from error


def _import_file(name: str) -> ModuleType:
    path = _file(name)
    if not path.is_file():
        raise PluginError(
            f"there is no file '{name}' in '{Path.cwd()}'. Start the command where it was named, "
            f"name its new place in the configuration, or add --trust FOLDER/{Path(name)}"
        )
    spec = importlib.util.spec_from_file_location(str(path), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(path)] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[str(path)]
        raise PluginError(f"'{name}' cannot be imported: {describe_error(error)}") from error
    return module


def _check(family: Family, name: str, found: Any) -> None:
    module_name, _, attribute = family.base.partition(":")
    base = getattr(importlib.import_module(module_name), attribute)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = "a class" if isinstance(found, type) else type(found).__name__
        raise PluginError(
            f"'{name}' is {what}, and no {attribute}: {family.title} is a subclass of "
            f"{module_name}.{attribute}"
        )
    lacking = sorted(getattr(found, "__abstractmethods__", ()))
    if lacking:
        raise PluginError(f"'{name}' must define {', '.join(lacking)}, as every {attribute} does")

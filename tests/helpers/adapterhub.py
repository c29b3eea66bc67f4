"""Adapters of AdapterHub's package `adapters`, with the parameters of ours in them."""

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

# What makes it ask for an older transformers; its configurations take these names from there.
UTILS: dict[str, Any] = {"get_adapter_config_hash": repr, "multigetattr": None}
UTILS["resolve_adapter_config"] = lambda config, **_: config  # which is none of its names
MODULES = ("configuration", "composition", "context", "methods.modeling", "methods.bottleneck")


def adapterhub() -> SimpleNamespace:
    """Return its modules by their last name, such as `modeling`, or skip the test."""
    try:
        distribution("adapters")
    except PackageNotFoundError:
        pytest.skip("needs AdapterHub's adapters: pip install --no-deps adapters")
    return _load()


@cache
def _load() -> SimpleNamespace:
    spec = find_spec("adapters")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations)))
    before = {name: sys.modules.pop(name) for name in _own_modules()}
    try:
        # Packages without the files that would import the rest of them.
        for name, path in (("adapters", folder), ("adapters.methods", folder / "methods")):
            sys.modules[name] = package = ModuleType(name)
            vars(package).update(__path__=[str(path)], __version__=distribution("adapters").version)
        sys.modules["adapters.utils"] = ModuleType("adapters.utils")
        vars(sys.modules["adapters.utils"]).update(UTILS)
        loaded = {name.split(".")[-1]: import_module(f"adapters.{name}") for name in MODULES}
        return SimpleNamespace(**loaded)
    finally:
        for name in _own_modules():
            del sys.modules[name]
        sys.modules.update(before)


def _own_modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "adapters"]


def adapted(
    adapter: nn.Module, parts: dict[str, Tensor], x: Tensor, y: Tensor, norm: nn.Module | None
) -> Tensor:
    """Return what one of its adapters makes of a block's output."""
    theirs: Any = adapter
    own = {name for name, _ in adapter.named_parameters()}
    hidden, _, residual = theirs.pre_forward(y, x, norm)
    with adapterhub().context.ForwardContext(adapter) as context:
        context.shared_parameters = {
            theirs.name: {name: part for name, part in parts.items() if name not in own}
        }
        private = {name: part for name, part in parts.items() if name in own}
        made = functional_call(adapter, private, (hidden, residual), strict=True)[0]
    return theirs.post_forward(made, y, x, norm)


def mixed(
    adapter: nn.Module,
    stacks: dict[str, Tensor],
    weights: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    mix: str,
) -> Tensor:
    """Return what it makes of each example with the mixture of K adapters, one by one."""
    made = []
    for b, row in enumerate(weights[:, 0]):
        given = x[b : b + 1], y[b : b + 1], None
        if mix == "factors":
            means = {name: torch.tensordot(row, part, 1) for name, part in stacks.items()}
            made.append(adapted(adapter, means, *given))
        else:
            singles = [{name: part[k] for name, part in stacks.items()} for k in range(len(row))]
            outputs = [adapted(adapter, parts, *given) for parts in singles]
            made.append(torch.tensordot(row, torch.stack(outputs), 1))
    return torch.cat(made)

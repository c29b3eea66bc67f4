"""Annotated shapes are checked once for all equivalent calls of a function.

What jaxtyping and beartype say of a call depends on the types, dtypes and shapes of what goes in
and comes out, so a call like one that was checked needs no check: that takes a tenth of the time.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper, wraps
from types import FunctionType
from typing import Any

import jaxtyping
from torch import Tensor

EXACT = (bool, int, str)  # values that an annotation may name


def check_shapes(rooms: Sequence[str]) -> None:
    """Check the functions of packages that are imported from now on."""
    jaxtyping.jaxtyped = partial(_checked, jaxtyping.jaxtyped)
    jaxtyping.install_import_hook(rooms, "beartype.beartype")


def _checked(jaxtyped: Callable[..., Any], made: Any = None, *, typechecker: Any) -> Any:
    """Stand in for the decorator that jaxtyping puts on every function and class."""
    if made is None:
        return partial(_checked, jaxtyped, typechecker=typechecker)
    if not inspect.isfunction(made) or inspect.isgeneratorfunction(made):
        return jaxtyped(made, typechecker=typechecker)
    seen: set[Any] = set()
    now = threading.local()

    def repeat(*args: Any, **kwargs: Any) -> Any:
        return now.found

    def check(*args: Any, **kwargs: Any) -> None:
        if not hasattr(repeat, "checked"):  # beartype writes code for it
            scope = made.__globals__
            again = FunctionType(repeat.__code__, scope, made.__name__, None, repeat.__closure__)
            repeat.checked = jaxtyped(update_wrapper(again, made), typechecker=typechecker)
        repeat.checked(*args, **kwargs)

    @wraps(made)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        found = made(*args, **kwargs)
        if not jaxtyping.config.jaxtyping_disable:
            case = _like(args), _like(kwargs), _like(found)
            if case not in seen:
                now.found = found
                try:
                    check(*args, **kwargs)
                finally:
                    del now.found  # which nothing else may keep alive
                seen.add(case)
        return found

    return wrapped


def _like(value: Any) -> Any:
    """Return what a check sees of a value."""
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.shape
    if isinstance(value, tuple | list):
        return type(value), *map(_like, value)
    if isinstance(value, dict):
        return type(value), *((_like(key), _like(one)) for key, one in value.items())
    return (type(value), value) if isinstance(value, EXACT) else type(value)

"""Adaptation of a model within a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mttl.adaptation.modes import apply_mode, kept_state
from mttl.config.section import AdaptMode
from mttl.skills.skilled_model import SkilledModel


@contextmanager
def adapted(
    model: SkilledModel, mode: AdaptMode, *n_tasks: int, **how: Any
) -> Iterator[SkilledModel]:
    """Adapt a model by `apply_mode`, and restore it afterwards."""
    leave = kept_state(model, mode)
    try:
        yield apply_mode(model, mode, *n_tasks, **how)
    finally:
        leave()

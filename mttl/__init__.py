"""Modular multi-task learning: an inventory of skills, and a router from tasks to skills.

Four packages follow the survey *Modular Deep Learning* (Pfeiffer, Ruder, Vulić, Ponti, TMLR 2023,
arXiv:2302.11529): `mttl.skills` (computation of skills), `mttl.routing` (selection of skills),
`mttl.aggregation` (combination of skills) and `mttl.training`.

Functions: `mttl.load` returns a trained run that answers texts, `mttl.adapt` adapts one to new
tasks and scores it, `mttl.adapt_to` returns a model adapted to a few examples, and
`mttl.from_pretrained` also loads runs from the model hub.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mttl.runtime.version import VERSION

if TYPE_CHECKING:
    from mttl.adaptation.new_tasks import adapt, adapt_to
    from mttl.adaptation.score_table import few_shot_table
    from mttl.assembly.model import from_pretrained
    from mttl.assembly.model import load_run as load

__version__ = VERSION
__all__ = ["adapt", "adapt_to", "few_shot_table", "from_pretrained", "load"]

# Loaded on first use, because they import PyTorch.
_HOMES = {
    "adapt": ("mttl.adaptation.new_tasks", "adapt"),
    "adapt_to": ("mttl.adaptation.new_tasks", "adapt_to"),
    "few_shot_table": ("mttl.adaptation.score_table", "few_shot_table"),
    "from_pretrained": ("mttl.assembly.model", "from_pretrained"),
    "load": ("mttl.assembly.model", "load_run"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mttl' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    from mttl.runtime.libraries import quiet_imports

    with quiet_imports():
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

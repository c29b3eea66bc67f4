"""The name by which a model of transformers takes and returns what it has read already."""

import inspect

from torch import nn

NAMES = ("cache", "past_key_values")  # from transformers 5.24 on, and before


def cache_argument(model: nn.Module) -> str:
    """Return the name of the cache among the arguments of a model's forward pass, and its outputs.

    Raises:
        ValueError: If it takes none.
    """
    taken = inspect.signature(model.forward).parameters
    for name in NAMES:
        if name in taken:
            return name
    raise ValueError(
        f"a {type(model).__name__} takes none of {', '.join(NAMES)}, and so cannot continue what "
        "it has read; take a model of transformers that generates with a cache"
    )

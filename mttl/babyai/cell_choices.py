"""Counts of the experts that the cells of views choose while policies play.

In the record, a token is the content of a cell, and the previous token is the next cell ahead.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from jaxtyping import Bool, UInt8
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

from mttl.analysis.token_record import TokenCounts
from mttl.babyai.position_experts import ViewRouting
from mttl.skills.composed.composed_model import ComposedModel

DOORS = ("open ", "closed ", "locked ")


class CellChoices:
    """Counts of choices of a model's experts, by level; a cell's number packs its three bytes."""

    def __init__(self, model: ComposedModel) -> None:
        layers = model.token_layers()
        first = next(iter(layers.values()))
        self.slot, self.layers = first.slot, tuple(layers)
        sizes = len(layers), model.router.n_tasks, first.router.n_experts
        self.counts = TokenCounts(*sizes, n_tokens=2**24)

    @contextmanager
    def counting(
        self, images: UInt8[np.ndarray, "T N 7 7 3"], alive: Bool[np.ndarray, "T N"]
    ) -> Iterator[None]:
        """Context manager: count the choices of one step in the slots that still count."""
        with self.slot.use(ViewRouting()) as routing:
            yield
        cells = images.astype(np.int64) @ (2**16, 2**8, 1)
        ahead = np.full_like(cells, self.counts.n_tokens)
        ahead[..., 1:] = cells[..., :-1]
        for number, record in enumerate(routing.records):
            level, layer = divmod(number, len(self.layers))
            tokens, experts = record.tokens.cpu().numpy(), record.experts.cpu().numpy()
            chosen = alive[level][tokens // record.positions]
            tokens = tokens[chosen]
            own, before = (values[level].ravel()[tokens] for values in (cells, ahead))
            dropped = 0 if record.kept is None else (~record.kept.cpu().numpy())[chosen].sum()
            levels = np.full(len(tokens), level)
            self.counts.add(layer, experts[chosen], levels, own, before, int(dropped))


def cell_text(number: int) -> str:
    """Return the content of a cell in words, such as "red ball" or "locked blue door"."""
    kind, colour, state = number >> 16, number >> 8 & 255, number & 255
    name = IDX_TO_OBJECT.get(kind, f"object {kind}")
    if name in ("unseen", "empty"):
        return name
    door = DOORS[state] if name == "door" and state < len(DOORS) else ""
    return f"{door}{IDX_TO_COLOR.get(colour, colour)} {name}"

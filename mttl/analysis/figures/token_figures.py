"""Figures of layers whose tokens choose experts."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mttl.analysis.figures.canvas import FONT, HEADING, INK, MARGIN, ROW, new_canvas, place
from mttl.analysis.figures.curves import statistics_by_layer, statistics_over_training
from mttl.analysis.tokens.token_record import TokenRoutingRecord
from mttl.analysis.tokens.token_statistics import load_entropy

PANEL = 1.6  # inches
SPACE = 0.75
COLUMNS = 6
NAMES = ("load entropy", "dropped", "task, bits", "token before, bits", "token, bits")
MOST_LAYERS = 36


def token_drawings(record: TokenRoutingRecord, name: str) -> Iterator[tuple[str, Figure]]:
    """Draw how experts are used, one figure when the next is asked for.

    Yields:
        The name of the file, without suffix, and the figure.
    """
    values = np.stack(
        [
            record.evenness(),
            record.dropped,
            record.task_bits,
            record.previous_bits,
            record.token_bits,
        ],
        axis=1,
    )
    title = f"{name}: loads of experts, and what decides the expert of a token"
    yield "tokens_by_layer", statistics_by_layer(values, record.layers, title=title, names=NAMES)
    history = record.history
    if history is not None and len(history.steps):
        curves = {
            "load entropy": (history.steps, load_entropy(history.load).mean(1)),
            "largest load": (history.steps, history.load.max(2).mean(1)),
            "dropped": (history.steps, history.dropped.mean(1)),
        }
        title = f"{name}: loads of experts over training, means over layers"
        yield "tokens_over_training", statistics_over_training(curves, title=title)
        chosen = np.linspace(0, len(record.layers) - 1, min(len(record.layers), MOST_LAYERS))
        numbers = np.unique(chosen.round().astype(int))
        yield (
            "tokens_load_over_training",
            loads_over_training(
                history.load[:, numbers],
                [record.layers[number] for number in numbers],
                first=int(history.steps[0]),
                last=int(history.steps[-1]),
                title=f"{name}: share of tokens that chose each expert, over training",
            ),
        )


def loads_over_training(
    load: Float[np.ndarray, "S M E"],
    layers: Sequence[str],
    *,
    first: int,
    last: int,
    title: str,
) -> Figure:
    """Draw the load of every expert over training, a panel per layer."""
    columns = min(COLUMNS, len(layers))
    rows = -(-len(layers) // columns)
    n_experts = load.shape[2]
    height_of = max(ROW * n_experts, 0.5)
    width = 2 * MARGIN + 0.3 + columns * (PANEL + 0.3)
    height = HEADING + 2 * MARGIN + rows * (height_of + SPACE)
    figure = new_canvas(width, height, title)
    for number, name in enumerate(layers):
        row, column = divmod(number, columns)
        left = MARGIN + 0.3 + column * (PANEL + 0.3)
        bottom = height - HEADING - MARGIN - (row + 1) * (height_of + SPACE) + SPACE / 2
        axes = place(figure, left, bottom, PANEL, height_of)
        axes.imshow(
            load[:, number].T,
            aspect="auto",
            cmap="cividis",
            interpolation="nearest",
            vmin=0,
            vmax=max(float(load.max()), 2 / n_experts),
            extent=(first, max(last, first + 1), n_experts - 0.5, -0.5),
        )
        axes.set_xticks([first, last])
        axes.set_yticks(range(0, n_experts, max(1, n_experts // 8)))
        short = name if len(name) <= 26 else f"…{name[-25:]}"
        axes.set_title(short, fontsize=FONT - 1, color=INK, loc="left", pad=3)
    return figure

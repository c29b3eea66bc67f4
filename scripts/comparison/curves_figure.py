"""Learning curves of policies as a figure."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from comparison.learning import Curve
from mttl.analysis.figures.canvas import FAINT, FONT, INK, new_canvas, place, strip_frame

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00")
WIDTH, HEIGHT = 2.3, 1.5  # of one panel, in inches


def curves_figure(curves: Mapping[str, Sequence[Curve]], reference: str) -> Figure:
    """Return the success rate over episodes: the mean over levels, then a panel per level.

    Lines are means over seeds, and bands their range, as far as all seeds have come.
    """
    levels = next(iter(curves.values()))[0].levels
    panels = ["all levels", *levels]
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    width = 0.6 + n_columns * (WIDTH + 0.35)
    height = 0.9 + n_rows * (HEIGHT + 0.55)
    figure = new_canvas(
        width, height, "Success rate over episodes of all levels; bands: the range over seeds"
    )
    for number, panel in enumerate(panels):
        row, column = divmod(number, n_columns)
        left = 0.5 + column * (WIDTH + 0.35)
        bottom = 0.75 + (n_rows - 1 - row) * (HEIGHT + 0.55)
        axes = place(figure, left, bottom, WIDTH, HEIGHT)
        strip_frame(axes, "right", "top")
        axes.set_title(panel, fontsize=FONT, color=INK)
        axes.set_ylim(0, 1.02)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_yticks([0, 0.5, 1])
        for colour, (method, runs) in zip(COLOURS, curves.items(), strict=False):
            n = min(len(run.episodes) for run in runs)
            rates = np.stack(
                [
                    run.rates[:n].mean(1) if number == 0 else run.rates[:n, number - 1]
                    for run in runs
                ]
            )
            episodes = np.stack([run.episodes[:n] for run in runs]).mean(0)
            style = "--" if method == reference else "-"
            axes.plot(episodes, rates.mean(0), style, color=colour, linewidth=1, label=method)
            if len(runs) > 1:
                ends = rates.min(0), rates.max(0)
                axes.fill_between(episodes, *ends, color=colour, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(axis="x", length=3)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="lower left",
        ncols=len(curves),
        frameon=False,
        fontsize=FONT,
    )
    return figure

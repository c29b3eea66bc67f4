"""Bins of scores of training answers, and files of rows with their codes."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from mttl.io.errors import TaskError
from mttl.io.files import write_text
from mttl.metrics.metric_names import split_metric
from mttl.tasks.control import CONTROL, write_edges
from mttl.tasks.rows import JSON_LINES, Row, RowFile, line_of


def bin_edges(scores: Float64[np.ndarray, "N"], n_bins: int) -> list[float]:
    """Return the increasing edges between bins of about equal size.

    Equal scores share a bin. An edge is the lowest score of the bin above it: the one for which the
    number of lower scores is closest to a multiple of N / n_bins. Edges are fewer than ``n_bins -
    1`` if there are too few different scores.
    """
    values, counts = np.unique(scores, return_counts=True)
    if len(values) < 2:
        return []
    wanted = np.arange(1, n_bins) * (len(scores) / n_bins)
    return np.unique(values[1:][np.abs(counts.cumsum()[:-1] - wanted[:, None]).argmin(1)]).tolist()


def codes_of(scores: Float64[np.ndarray, "N"], edges: Sequence[float]) -> Int64[np.ndarray, "N"]:
    """Return the bin of each score, from 1 (lowest)."""
    return np.searchsorted(edges, scores, side="right") + 1


def with_codes(rows: Iterable[tuple[Row, Mapping[str, int]]]) -> str:
    """Return rows as lines of JSON, each with codes in addition to its own."""
    return "".join(
        line_of(JSON_LINES, row.input, row.outputs, {**row.columns, CONTROL: {**own, **codes}})
        for row, codes in rows
        for own in [row.columns.get(CONTROL, {})]
    )


def add_codes(control: Mapping[str, int], folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Write codes into files of training rows, and the edges; return the new MD5 sums by file.

    Raises a `TaskError` if bins would be empty, as for metrics that read only references.
    """
    from mttl.metrics.crossfit import row_scores  # imports torch

    rows = {name: list(RowFile.scan(folder / name).rows()) for name in names}
    every = [row for own in rows.values() for row in own]
    parts = ((row.outputs[0], row.outputs, row.source) for row in every)
    answers, references, sources = zip(*parts, strict=True)
    edges, codes = {}, [dict[str, int]() for _ in every]
    for metric, n_bins in control.items():
        found, name = row_scores(metric, answers, references, sources), split_metric(metric)[0]
        edges[name] = bin_edges(found, n_bins)
        if (n_found := len(edges[name]) + 1) < n_bins:
            raise TaskError(
                f"task '{folder.name}', {CONTROL}: the scores of {len(every):,} answers by "
                f"'{metric}' fill only {n_found} of {n_bins} bins; lower their number, or choose a "
                "metric that compares answers with the row's knowledge instead of references"
            )
        for row, code in zip(codes, codes_of(found, edges[name]).tolist(), strict=True):
            row[name] = code
    write_edges(folder, edges)
    sums, left = {}, iter(codes)
    for name, own in rows.items():
        text = with_codes((row, next(left)) for row in own)
        write_text(folder / name, text)
        sums[name] = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return sums

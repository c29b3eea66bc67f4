"""Counts of the experts that tokens choose, and readers and writers of a run's files about them.

| file | content |
|---|---|
| ``plots/token_routing.npz`` | choices of the kept checkpoint on the evaluation rows |
| ``plots/token_history.npz`` | loads during training: ``steps (S,)``, ``load (S, M, E)``, \
``dropped (S, M)``, ``layers (M,)`` |
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.routing_record import RoutingRecord, read_arrays
from mttl.io.files import atomic_path

N_TOP = 10  # tokens listed for each expert
START = "start"  # stands for the token before the first
# Largest number of keys of one layer before they are merged.
MOST_KEYS = 2_000_000


class TokenCounts:
    """Counts of choices by layer; the token ``n_tokens`` stands for the start of a text."""

    def __init__(self, n_layers: int, n_tasks: int, n_experts: int, n_tokens: int) -> None:
        self.n_experts = n_experts
        self.n_tokens = n_tokens
        self.tasks = np.zeros((n_layers, n_tasks, n_experts), dtype=np.int64)
        self.dropped = np.zeros(n_layers, dtype=np.int64)
        self._keys = [np.zeros(0, dtype=np.int64) for _ in range(n_layers)]
        self._counts = [np.zeros(0, dtype=np.int64) for _ in range(n_layers)]

    def add(
        self,
        layer: int,
        experts: Int[np.ndarray, "P"],
        tasks: Int[np.ndarray, "P"],
        tokens: Int[np.ndarray, "P"],
        previous: Int[np.ndarray, "P"],
        n_dropped: int = 0,
    ) -> None:
        """Add the choices of a layer in one forward pass."""
        np.add.at(self.tasks[layer], (tasks, experts), 1)
        self.dropped[layer] += n_dropped
        size = self.n_tokens + 1
        keys, counts = np.unique((experts * size + previous) * size + tokens, return_counts=True)
        self._keys[layer] = np.concatenate([self._keys[layer], keys])
        self._counts[layer] = np.concatenate([self._counts[layer], counts])
        if len(self._keys[layer]) > MOST_KEYS:
            self._merge(layer)

    def bigrams(self, layer: int) -> "Bigrams":
        """Return the counts of a layer by expert, preceding token and token."""
        self._merge(layer)
        rest, tokens = np.divmod(self._keys[layer], self.n_tokens + 1)
        experts, previous = np.divmod(rest, self.n_tokens + 1)
        return Bigrams(experts, previous, tokens, self._counts[layer], self.n_experts)

    def _merge(self, layer: int) -> None:
        self._keys[layer], where = np.unique(self._keys[layer], return_inverse=True)
        self._counts[layer] = np.bincount(where, self._counts[layer]).astype(np.int64)


@dataclass(frozen=True)
class Bigrams:
    """Counts of a layer's choices by expert, preceding token and token, without zeros.

    The token before the first one of a text is V.
    """

    experts: Int[np.ndarray, "C"]
    previous: Int[np.ndarray, "C"]
    tokens: Int[np.ndarray, "C"]
    counts: Int[np.ndarray, "C"]
    n_experts: int

    def table(self, values: Int[np.ndarray, "C"]) -> tuple[Int[np.ndarray, "A"], np.ndarray]:
        """Return the distinct ``values``, tokens or previous, and their counts by expert (A, E)."""
        found, where = np.unique(values, return_inverse=True)
        table = np.zeros((len(found), self.n_experts), dtype=np.int64)
        np.add.at(table, (where, self.experts), self.counts)
        return found, table


def load_entropy(loads: Float[np.ndarray, "*layers E"]) -> Float[np.ndarray, "*layers"]:
    """Return the entropy over its maximum: 1 for equal loads, 0 if one expert has all or none."""
    from scipy.special import entr

    shares = loads / np.maximum(loads.sum(-1, keepdims=True), 1e-12)
    return entr(shares).sum(-1) / np.log(loads.shape[-1])


def mutual_information(counts: Int[np.ndarray, "A E"]) -> float:
    """Return the mutual information of rows and columns in bits, with the Miller-Madow correction.

    The plug-in estimate of independent variables is too large by about (a - 1)(e - 1) / (2 n)
    nats for a rows, e columns and n entries; this is subtracted. Empty rows and columns do not
    count.
    """
    from sklearn.metrics import mutual_info_score

    if not counts.any():
        return 0.0
    found = mutual_info_score(None, None, contingency=counts)
    n_rows, n_columns = counts.any(1).sum(), counts.any(0).sum()
    bias = (n_rows - 1) * (n_columns - 1) / (2 * counts.sum())
    return float(max(0.0, found - bias) / np.log(2))


@dataclass(frozen=True)
class TokenRoutingRecord:
    """Choices of the tokens of a run. A pair is a token and an expert that it chose."""

    folder: Path
    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    counts: Int[np.ndarray, "M T E"]  # pairs by layer, task and expert
    dropped: Float[np.ndarray, "M"]  # share of pairs that exceeded the capacity of their expert
    # Mutual information of expert and token, preceding token or task, in bits.
    token_bits: Float[np.ndarray, "M"]
    previous_bits: Float[np.ndarray, "M"]
    task_bits: Float[np.ndarray, "M"]
    expert_bits: Float[np.ndarray, "M"]  # entropy of the loads, which bounds the others
    tokens: np.ndarray  # those that chose an expert most often, padded with ""
    token_counts: Int[np.ndarray, "M E n"]
    token_shares: Float[np.ndarray, "M E n"]  # of this expert among all choices of a token
    before: np.ndarray  # commonest token before each of these tokens
    previous: np.ndarray  # commonest tokens before all tokens that chose an expert
    previous_counts: Int[np.ndarray, "M E n"]
    history: "LoadHistory | None" = None

    def loads(self) -> Float[np.ndarray, "M E"]:
        """Return the share of a layer's pairs that chose each expert."""
        counts = self.counts.sum(1)
        return counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def evenness(self) -> Float[np.ndarray, "M"]:
        """Return the entropy of each layer's loads over its maximum."""
        return load_entropy(self.counts.sum(1))

    def as_routing(self) -> RoutingRecord:
        """Return the shares of each task's tokens among experts, as a routing of tasks."""
        totals = self.counts.sum(2, keepdims=True)
        shares = np.where(totals > 0, self.counts / np.maximum(totals, 1), 1 / self.counts.shape[2])
        return RoutingRecord(self.folder, self.tasks, self.layers, shares, shares)


@dataclass(frozen=True)
class LoadHistory:
    """The loads over training: shares of each layer's pairs since the previous record."""

    steps: Int[np.ndarray, "S"]
    load: Float[np.ndarray, "S M E"]
    dropped: Float[np.ndarray, "S M"]


def write_token_record(
    path: Path,
    counts: TokenCounts,
    *,
    layers: tuple[str, ...],
    tasks: tuple[str, ...],
    text_of: Callable[[int], str],
) -> None:
    """Write ``token_routing.npz``."""

    def text(token: int) -> str:
        return START if token == counts.n_tokens else text_of(token)

    rows = [_layer(counts.bigrams(layer), text) for layer in range(len(layers))]
    arrays: dict[str, Any] = {
        "layers": np.array(layers),
        "tasks": np.array(tasks),
        "counts": counts.tasks,
        "dropped": counts.dropped / np.maximum(counts.tasks.sum((1, 2)), 1),
        "task_bits": np.array([mutual_information(table) for table in counts.tasks]),
        "expert_bits": load_entropy(counts.tasks.sum(1)) * np.log2(counts.n_experts),
        **{name: np.array([row[name] for row in rows]) for name in rows[0]},
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _layer(bigrams: Bigrams, text: Callable[[int], str]) -> Mapping[str, Any]:
    """Return one layer's mutual information and the commonest tokens of each expert."""
    ids, table = bigrams.table(bigrams.tokens)
    previous_ids, previous_table = bigrams.table(bigrams.previous)
    shape, texts = (bigrams.n_experts, N_TOP), ("tokens", "before", "previous")
    row: dict[str, Any] = {name: np.full(shape, "", dtype=object) for name in texts}
    row |= {name: np.zeros(shape, np.int64) for name in ("token_counts", "previous_counts")}
    row |= {"token_shares": np.zeros(shape), "token_bits": mutual_information(table)}
    row["previous_bits"] = mutual_information(previous_table)
    for expert in range(bigrams.n_experts):
        for rank, place in enumerate(_commonest(table[:, expert])):
            token = int(ids[place])
            row["tokens"][expert, rank] = text(token)
            row["token_counts"][expert, rank] = table[place, expert]
            row["token_shares"][expert, rank] = table[place, expert] / table[place].sum()
            here = (bigrams.experts == expert) & (bigrams.tokens == token)
            before = bigrams.previous[here][bigrams.counts[here].argmax()]
            row["before"][expert, rank] = text(int(before))
        for rank, place in enumerate(_commonest(previous_table[:, expert])):
            row["previous"][expert, rank] = text(int(previous_ids[place]))
            row["previous_counts"][expert, rank] = previous_table[place, expert]
    return row | {name: row[name].astype(str) for name in texts}


def _commonest(counts: np.ndarray) -> list[int]:
    return [int(place) for place in np.argsort(-counts, kind="stable")[:N_TOP] if counts[place]]


def read_token_record(folder: str | Path) -> TokenRoutingRecord | None:
    """Return the token routing of a run, or None; `CheckpointError` if a file is damaged."""
    folder = Path(folder)
    path = folder / "plots" / "token_routing.npz"
    if not path.is_file():
        return None
    fields = TokenRoutingRecord.__dataclass_fields__
    names = [name for name in fields if name not in ("folder", "history")]
    arrays = read_arrays(path, tuple(names))
    layers, tasks = (tuple(arrays.pop(name).tolist()) for name in ("layers", "tasks"))
    over_time = path.with_name("token_history.npz")
    history = None
    if os.path.lexists(over_time):
        history = LoadHistory(**read_arrays(over_time, ("steps", "load", "dropped")))
    return TokenRoutingRecord(folder=folder, tasks=tasks, layers=layers, history=history, **arrays)


def expert_tokens(record: TokenRoutingRecord, layer: int, expert: int, n: int) -> tuple[str, str]:
    """Return the commonest tokens of an expert, and the commonest before them, as text."""
    of_tokens = record.tokens, record.before, record.token_shares, record.token_counts
    tokens = [
        f"{quoted(token)} {share:.0%} (after {quoted(before)})"
        for token, before, share, count in zip(*(x[layer, expert] for x in of_tokens), strict=True)
        if count
    ]
    chosen = record.previous_counts[layer, expert] > 0
    previous = [quoted(token) for token in record.previous[layer, expert][chosen]]
    return ", ".join(tokens[:n]), ", ".join(previous[:n])


def quoted(token: str) -> str:
    """Return a token, quoted if it is blank or not printable."""
    return repr(str(token)) if not str(token).strip() or not str(token).isprintable() else token


def token_data(record: TokenRoutingRecord, *, policies: bool = False) -> dict[str, Any]:
    """Return the data of the interactive page about layers whose tokens choose experts."""
    loads, evenness = record.loads(), record.evenness()
    history, layers = record.history, []
    for number, name in enumerate(record.layers):
        experts = []
        for expert, load in enumerate(loads[number]):
            tokens, previous = expert_tokens(record, number, expert, n=10)
            experts.append({"load": f"{load:.1%}", "tokens": tokens, "previous": previous})
        numbers = (
            f"Load entropy {evenness[number]:.3f} of 1; dropped {record.dropped[number]:.1%}. "
            f"Entropy of the choice {record.expert_bits[number]:.2f} bits; mutual information with "
            f"the task {record.task_bits[number]:.2f}, with the previous token "
            f"{record.previous_bits[number]:.2f}, with the token {record.token_bits[number]:.2f}."
        )
        curve = [] if history is None else history.load[:, number].T.astype(float).round(4).tolist()
        layers.append({"name": name, "experts": experts, "numbers": numbers, "history": curve})
    what = (
        f"{len(record.layers)} layers of {record.counts.shape[2]} experts. Percentages are the "
        "expert's share of a token's choices in the layer."
    )
    cells = " A token is the content of a cell, and the previous token is the next cell ahead."
    what += cells * policies
    steps = [] if history is None else history.steps.tolist()
    return {"what": what, "steps": steps, "layers": layers}

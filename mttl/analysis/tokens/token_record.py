"""The files of a run about the experts that its tokens chose.

| file | content |
|---|---|
| ``plots/token_routing.npz`` | choices of the weights that the run kept, on its evaluation rows |
| ``plots/token_history.npz`` | loads while training: ``steps (S,)``, ``load (S, M, E)``, \
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
from mttl.analysis.tokens.token_counts import Bigrams, TokenCounts
from mttl.analysis.tokens.token_statistics import entropy_bits, load_entropy, mutual_information
from mttl.io.errors import CheckpointError
from mttl.io.files import atomic_path

N_TOP = 10  # tokens listed for each expert
START = "start"  # in the place of a token before the first


@dataclass(frozen=True)
class TokenRoutingRecord:
    """Choices of the tokens of a run. A pair is a token and an expert that it chose.

    Attributes:
        folder: The run's.
        tasks: Names of the tasks.
        layers: Names of the M layers that route tokens.
        counts: Pairs by layer, task and expert.
        dropped: Share of pairs that found no room, by layer.
        token_bits: What a token tells about its expert, in bits, by layer.
        previous_bits: What the token before it tells.
        task_bits: What its task tells.
        expert_bits: The most that anything could tell: the entropy of the loads.
        tokens: The tokens that chose an expert most often; "" where there are fewer.
        token_counts: How often.
        token_shares: Of all that these tokens chose in the layer, the share of this expert.
        before: The token that stood most often before them there.
        previous: The commonest tokens before those that chose an expert.
        previous_counts: How often.
        history: Loads over training, if the run recorded them.
    """

    folder: Path
    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    counts: Int[np.ndarray, "M T E"]
    dropped: Float[np.ndarray, "M"]
    token_bits: Float[np.ndarray, "M"]
    previous_bits: Float[np.ndarray, "M"]
    task_bits: Float[np.ndarray, "M"]
    expert_bits: Float[np.ndarray, "M"]
    tokens: np.ndarray
    token_counts: Int[np.ndarray, "M E n"]
    token_shares: Float[np.ndarray, "M E n"]
    before: np.ndarray
    previous: np.ndarray
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
        """Return how the tokens of each task are shared among experts, as a routing of tasks."""
        totals = self.counts.sum(2, keepdims=True)
        shares = np.where(totals > 0, self.counts / np.maximum(totals, 1), 1 / self.counts.shape[2])
        return RoutingRecord(self.folder, self.tasks, self.layers, shares, None, {})


@dataclass(frozen=True)
class LoadHistory:
    """Loads over training.

    Attributes:
        steps: When they were recorded.
        load: Share of each layer's pairs that chose each expert since the record before.
        dropped: Share of pairs that found no room.
    """

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
    totals = counts.tasks.sum((1, 2))
    arrays: dict[str, Any] = {
        "layers": np.array(layers),
        "tasks": np.array(tasks),
        "counts": counts.tasks,
        "dropped": counts.dropped / np.maximum(totals, 1),
        "task_bits": np.array([mutual_information(table) for table in counts.tasks]),
        "expert_bits": np.array([entropy_bits(table.sum(0)) for table in counts.tasks]),
        **{name: np.array([row[name] for row in rows]) for name in rows[0]},
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _layer(bigrams: Bigrams, text: Callable[[int], str]) -> Mapping[str, Any]:
    """Return the row of one layer: what tokens tell, and the commonest of each expert."""
    ids, table = bigrams.by_token()
    previous_ids, previous_table = bigrams.by_previous()
    shape = bigrams.n_experts, N_TOP
    row: dict[str, Any] = {
        "token_bits": mutual_information(table),
        "previous_bits": mutual_information(previous_table),
        "tokens": np.full(shape, "", dtype=object),
        "token_counts": np.zeros(shape, dtype=np.int64),
        "token_shares": np.zeros(shape),
        "before": np.full(shape, "", dtype=object),
        "previous": np.full(shape, "", dtype=object),
        "previous_counts": np.zeros(shape, dtype=np.int64),
    }
    for expert in range(bigrams.n_experts):
        for rank, place in enumerate(_commonest(table[:, expert])):
            token = int(ids[place])
            row["tokens"][expert, rank] = text(token)
            row["token_counts"][expert, rank] = table[place, expert]
            row["token_shares"][expert, rank] = table[place, expert] / table[place].sum()
            row["before"][expert, rank] = text(bigrams.commonest_before(expert, token))
        for rank, place in enumerate(_commonest(previous_table[:, expert])):
            row["previous"][expert, rank] = text(int(previous_ids[place]))
            row["previous_counts"][expert, rank] = previous_table[place, expert]
    for name in ("tokens", "before", "previous"):
        row[name] = row[name].astype(str)
    return row


def _commonest(counts: np.ndarray) -> list[int]:
    order = np.argsort(-counts, kind="stable")[:N_TOP]
    return [int(place) for place in order if counts[place]]


def has_token_record(folder: str | Path) -> bool:
    """Return whether a run wrote down what its tokens chose."""
    return (Path(folder) / "plots" / "token_routing.npz").is_file()


def read_token_record(folder: str | Path) -> TokenRoutingRecord:
    """Read what a run wrote down about the experts that its tokens chose.

    Raises:
        CheckpointError: If there is nothing, or a file is damaged.
    """
    folder = Path(folder)
    path = folder / "plots" / "token_routing.npz"
    if not path.is_file():
        raise CheckpointError(
            f"'{path}' does not exist. Give the folder of a run with a section moe that has ended"
        )
    fields = TokenRoutingRecord.__dataclass_fields__
    names = [name for name in fields if name not in ("folder", "history")]
    arrays = read_arrays(path, tuple(names))
    layers, tasks = (tuple(arrays.pop(name).tolist()) for name in ("layers", "tasks"))
    history = _read_history(path.with_name("token_history.npz"))
    return TokenRoutingRecord(folder=folder, tasks=tasks, layers=layers, history=history, **arrays)


def _read_history(path: Path) -> LoadHistory | None:
    if not os.path.lexists(path):
        return None
    arrays = read_arrays(path, ("steps", "load", "dropped"))
    return LoadHistory(arrays["steps"], arrays["load"], arrays["dropped"])

"""Which tokens choose which experts: counts, what they tell, and the report."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from mttl.analysis.explore.explore_page import explore_page
from mttl.analysis.figures.catalogue import token_drawings
from mttl.analysis.routing_view import RoutingView
from mttl.analysis.token_record import (
    TokenCounts,
    expert_tokens,
    load_entropy,
    mutual_information,
    read_token_record,
    token_data,
    write_token_record,
)

WORDS = ("a", "b", " ", "d")
TASKS = ("past", "plural", "clock")


def collected(n: int = 4000, merge: int | None = None) -> TokenCounts:
    """In layer 0 the token decides the expert, in layer 1 the task, in layer 2 nothing."""
    generator = np.random.default_rng(0)
    counts = TokenCounts(3, len(TASKS), 4, len(WORDS))
    for _ in range(2):
        tokens, previous = generator.integers(0, 4, n), generator.integers(0, 5, n)
        tasks = generator.integers(0, 3, n)
        for layer, experts in enumerate((tokens, tasks, generator.integers(0, 4, n))):
            counts.add(layer, experts, tasks, tokens, previous, n_dropped=layer * n // 10)
    return counts


def test_information_agrees_with_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 5, 50_000)
    y = np.where(generator.random(50_000) < 0.6, x % 3, generator.integers(0, 3, 50_000))
    table = np.zeros((5, 3), dtype=np.int64)
    np.add.at(table, (x, y), 1)
    # The correction for chance: 8 / (2 · 50,000) nats.
    expected = mutual_info_score(x, y) - 8 / 100_000
    assert mutual_information(table) == pytest.approx(expected / np.log(2), rel=1e-9)


def test_chance_tells_nothing() -> None:
    generator = np.random.default_rng(2)
    tables = [generator.multinomial(300, np.full(60, 1 / 60)).reshape(12, 5) for _ in range(200)]
    # Plug-in estimates would have the mean 44 / 600 nats = 0.106 bits.
    assert np.mean([mutual_information(table) for table in tables]) < 0.02
    assert mutual_information(np.zeros((3, 2), dtype=np.int64)) == 0
    assert load_entropy(np.zeros(3)) == 0


def test_a_record_its_figures_and_page_tell_what_decides(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    write_token_record(
        tmp_path / "plots" / "token_routing.npz",
        collected(),
        layers=("encoder.block.0.q", "encoder.block.1.q", "decoder.block.0.q"),
        tasks=TASKS,
        text_of=lambda token: WORDS[token],
    )
    load = np.full((2, 3, 4), 0.25)
    load[1, 0] = [1, 0, 0, 0]
    np.savez(
        tmp_path / "plots" / "token_history.npz",
        **{"steps": np.array([50, 100]), "load": load},
        **{"dropped": np.zeros((2, 3)), "layers": np.array(["q"] * 3)},
    )
    record = read_token_record(tmp_path)
    # Four equally frequent tokens make 2 bits, three tasks log2(3); samples of 8,000 are near it.
    np.testing.assert_allclose(record.token_bits, [2, 0, 0], atol=0.01)
    np.testing.assert_allclose(record.task_bits, [0, np.log2(3), 0], atol=0.01)
    np.testing.assert_allclose(record.previous_bits, [0, 0, 0], atol=0.01)
    np.testing.assert_allclose(record.dropped, [0, 0.1, 0.2])
    np.testing.assert_allclose(record.evenness()[[0, 2]], 1, atol=1e-3)
    assert record.counts.sum() == 3 * 8000
    assert list(record.tokens[0, :, 0]) == list(WORDS)
    assert record.tokens[0, 0, 1] == ""
    assert set(record.previous[0, 0][:5]) == {*WORDS, "start"}
    np.testing.assert_allclose(record.token_shares[0, :, 0], 1)
    assert expert_tokens(record, 0, 2, 5)[0].startswith("' ' 100% (after ")
    routing = record.as_routing()
    np.testing.assert_allclose(routing.weights.sum(2), 1)
    np.testing.assert_allclose(routing.weights[1, :, :3], np.eye(3))
    assert set(dict(token_drawings(record, "run"))) == {"tokens_by_layer", "tokens_over_training"}
    assert "Entropy of the choice 2.00 bits" in token_data(record)["layers"][0]["numbers"]
    page = explore_page([RoutingView(routing, ("x",) * 3, tokens=record)])
    assert "Entropy of the choice 2.00 bits" in page


def test_many_keys_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collected().bigrams(0)
    monkeypatch.setattr("mttl.analysis.token_record.MOST_KEYS", 10)
    merged = collected().bigrams(0)
    for name in ("experts", "previous", "tokens", "counts"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))

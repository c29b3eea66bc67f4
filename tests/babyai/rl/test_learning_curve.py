import json
from collections import deque

import numpy as np
import pandas
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.learning_curve import EpisodeLog, episodes_to


def random_step(generator, n_levels, n_slots):
    kind = generator.integers(0, 4, (n_levels, n_slots))
    terminated, truncated = kind == 0, kind == 1
    reward = np.where(generator.random(kind.shape) < 0.6, generator.random(kind.shape), 0)
    return terminated, truncated, reward.astype(np.float32), generator.integers(1, 65, kind.shape)


@given(
    n_levels=st.integers(1, 3),
    n_slots=st.integers(1, 9),
    window=st.integers(1, 12),
    n_steps=st.integers(0, 15),
    seed=st.integers(0, 2**31),
)
def test_against_a_queue_for_each_level(n_levels, n_slots, window, n_steps, seed):
    generator = np.random.default_rng(seed)
    log = EpisodeLog([f"level {t}" for t in range(n_levels)], window)
    queues = [deque(maxlen=window) for _ in range(n_levels)]
    counts = [0] * n_levels
    for _ in range(n_steps):
        step = random_step(generator, n_levels, n_slots)
        log.update(*step)
        for t in range(n_levels):
            for n in range(n_slots):
                terminated, truncated, reward, length = (x[t, n] for x in step)
                if terminated or truncated:
                    counts[t] += 1
                    queues[t].append((bool(terminated) and reward > 0, reward, length))
    assert log.episodes.tolist() == counts
    assert log.frames.tolist() == [n_steps * n_slots] * n_levels
    expected = np.array(
        [np.mean(q, axis=0) if len(q) == window else [np.nan] * 3 for q in queues], dtype=float
    )
    row = log.row()
    names = ("success", "reward", "steps")
    means = np.array([[row[f"{name}/{level}"] for name in names] for level in log.levels])
    # Means of a dozen numbers, added in another order.
    np.testing.assert_allclose(means, expected, rtol=1e-12)


def test_it_goes_on_from_a_saved_state():
    generator = np.random.default_rng(0)
    log, other = (EpisodeLog(["GoToObj", "GoTo"], window=5) for _ in range(2))
    for _ in range(7):
        log.update(*random_step(generator, 2, 3))
    state = json.dumps(log.state_dict())  # nothing but plain lists, numbers and names
    other.load_state_dict(json.loads(state))
    for _ in range(4):
        step = random_step(generator, 2, 3)
        log.update(*step)
        other.update(*step)
    assert log.state_dict() == other.state_dict()
    assert log.row() == other.row()


@given(
    n_rows=st.integers(1, 30),
    window=st.integers(1, 12),
    missing=st.floats(0, 0.2),
    seed=st.integers(0, 2**31),
)
def test_smoothing_is_the_centred_rolling_mean_of_pandas(n_rows, window, missing, seed):
    """Of the mean over levels, from the first row on that reaches the threshold."""
    generator = np.random.default_rng(seed)
    rates = generator.random((n_rows, 3))
    rates[generator.random((n_rows, 3)) < missing] = np.nan
    means = pandas.DataFrame(rates).rolling(window, center=True).mean().mean(axis=1, skipna=False)
    expected = next((row for row, mean in enumerate(means) if mean >= 0.5), None)
    found = episodes_to(np.arange(n_rows), rates, threshold=0.5, smoothing=window)
    assert found == expected


@given(seed=st.integers(0, 2**31), window=st.sampled_from([1, 10, 100]))
def test_one_level_crosses_where_the_published_rule_says(seed, window):
    generator = np.random.default_rng(seed)
    chance = np.linspace(0.9, generator.uniform(0.97, 1), 300)
    rates = generator.binomial(100, chance) / 100
    episodes = np.cumsum(generator.integers(1, 90, 300))
    log = pandas.DataFrame({"episodes": episodes, "rate": rates})
    rows = log[log.rate.rolling(window, center=True).mean() >= 0.99 - 1e-9]
    expected = None if rows.empty else rows.iloc[0].episodes
    assert episodes_to(episodes, rates[:, None], smoothing=window) == expected


def test_the_mean_of_levels_counts():
    rates = np.array([[0.9, 1.0], [0.98, 1.0], [0.99, 1.0], [1.0, 0.9]])
    episodes = np.array([10, 20, 30, 40])
    assert episodes_to(episodes, rates, smoothing=1) == 20
    assert episodes_to(episodes, rates, smoothing=1, threshold=0.995) == 30
    assert episodes_to(episodes, rates, smoothing=1, threshold=1.0) is None

    # Exactly the threshold, but for rounding.
    assert np.mean([0.97, 1.0, 1.0]) < 0.99
    assert episodes_to(episodes[:1], np.array([[0.97, 1.0, 1.0]]), smoothing=1) == 10
    assert episodes_to(episodes[:1], np.array([[0.98999, 0.99]]), smoothing=1) is None

    # A log shorter than the window is not judged.
    assert episodes_to(np.arange(99), np.ones((99, 2))) is None
    assert episodes_to(np.arange(100), np.ones((100, 2))) == 50
    assert episodes_to(np.arange(0), np.ones((0, 2))) is None

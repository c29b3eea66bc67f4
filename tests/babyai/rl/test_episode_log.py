import json
from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.episode_log import EpisodeLog


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

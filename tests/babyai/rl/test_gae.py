import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.gae import generalised_advantages, normalise_advantages


def slow_advantages(rewards, values, ends, next_values, discount, decay, bootstraps):
    """The definition as a sum over the errors that follow, one environment at a time."""
    n_steps, n_tasks, n_slots = rewards.shape
    result = torch.zeros_like(rewards)
    for task in range(n_tasks):
        for slot in range(n_slots):
            expected = [*values[:, task, slot].tolist(), next_values[task, slot].item()]
            for start in range(n_steps):
                weight, total = 1.0, 0.0
                for step in range(start, n_steps):
                    ended = ends[step, task, slot].item()
                    after = bootstraps[step, task, slot].item() if ended else expected[step + 1]
                    reward = rewards[step, task, slot].item()
                    total += weight * (reward + discount * after - expected[step])
                    weight *= discount * decay
                    if ended:
                        break
                result[start, task, slot] = total
    return result


def random_rollout(n_steps, n_tasks, n_slots, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (n_steps, n_tasks, n_slots)
    rewards, values, bootstraps = torch.randn(3, *shape, generator=generator, dtype=torch.double)
    ends = torch.rand(shape, generator=generator) < 0.3
    next_values = torch.randn(shape[1:], generator=generator, dtype=torch.double)
    return rewards, values, ends, next_values, bootstraps


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**31),
    discount=st.floats(0, 1),
    decay=st.floats(0, 1),
    bootstrapped=st.booleans(),
)
def test_the_recursion_is_the_sum_of_the_definition(sizes, seed, discount, decay, bootstrapped):
    rewards, values, ends, next_values, bootstraps = random_rollout(*sizes, seed)
    found = generalised_advantages(
        *(rewards, values, ends, next_values),
        discount=discount,
        decay=decay,
        bootstraps=bootstraps if bootstrapped else None,
    )
    bootstraps = bootstraps if bootstrapped else torch.zeros_like(values)
    slow = slow_advantages(rewards, values, ends, next_values, discount, decay, bootstraps)
    # At most nine terms of order 1 in double precision, added in another order.
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-12)


def test_bootstraps_are_read_only_where_an_episode_ended():
    rewards, values, ends, next_values, bootstraps = random_rollout(6, 2, 2, seed=1)
    settings = {"discount": 0.9, "decay": 0.8}
    found = generalised_advantages(
        rewards, values, ends, next_values, bootstraps=bootstraps, **settings
    )
    garbage = torch.where(ends, bootstraps, torch.nan)
    again = generalised_advantages(
        rewards, values, ends, next_values, bootstraps=garbage, **settings
    )
    assert torch.equal(found, again)


def test_normalised_advantages_have_mean_0_and_deviation_1():
    advantages = torch.randn(20, 3, 8, dtype=torch.double) * torch.tensor([1.0, 5, 9])[:, None] + 2
    together = normalise_advantages(advantages, "all")
    apart = normalise_advantages(advantages, "task")
    # The constant added to the deviation is 1e-8; the rest is rounding of doubles.
    assert together.mean() == pytest.approx(0, abs=1e-12)
    assert together.std(correction=0) == pytest.approx(1, abs=1e-7)
    for task in range(3):
        alone = normalise_advantages(advantages[:, task : task + 1], "all")
        torch.testing.assert_close(apart[:, task : task + 1], alone, rtol=1e-12, atol=1e-12)
    assert together[:, 0].std() < 0.5 < together[:, 2].std()
    assert normalise_advantages(advantages) is advantages


def test_an_unknown_way_to_normalise():
    with pytest.raises(ValueError, match=r"how \('batch'\) must be 'none', 'all' or 'task'"):
        normalise_advantages(torch.zeros(1, 1, 1), "batch")

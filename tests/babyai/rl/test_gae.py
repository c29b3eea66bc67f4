import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.gae import generalised_advantages


def slow_advantages(rewards, values, ends, next_values, discount, decay):
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
                    after = 0.0 if ended else expected[step + 1]
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
    rewards, values = torch.randn(2, *shape, generator=generator, dtype=torch.double)
    ends = torch.rand(shape, generator=generator) < 0.3
    next_values = torch.randn(shape[1:], generator=generator, dtype=torch.double)
    return rewards, values, ends, next_values


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**31),
    discount=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_the_recursion_is_the_sum_of_the_definition(sizes, seed, discount, decay):
    rollout = random_rollout(*sizes, seed)
    found = generalised_advantages(*rollout, discount=discount, decay=decay)
    # At most nine terms of order 1 in double precision, added in another order.
    slow = slow_advantages(*rollout, discount, decay)
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-12)

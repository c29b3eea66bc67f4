import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.losses import action_log_probs, generalised_advantages, imitation_loss, ppo_loss

N_ACTIONS = 7
SETTINGS = {"clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.01}


def random_frames(*shape, spread=0.5):
    """Frames whose policy and critic have moved from the old ones, many out of the clip range."""
    frames = {
        "logits": torch.randn(*shape, N_ACTIONS, dtype=torch.double),
        "values": torch.randn(shape, dtype=torch.double),
        "actions": torch.randint(0, N_ACTIONS, shape),
        "advantages": torch.randn(shape, dtype=torch.double),
        "returns": torch.randn(shape, dtype=torch.double),
    }
    now = action_log_probs(frames["logits"], frames["actions"])
    frames["old_log_probs"] = now + spread * torch.randn(shape, dtype=torch.double)
    frames["old_values"] = frames["values"] + spread * torch.randn(shape, dtype=torch.double)
    return frames


def slow_loss(frames, clip, value_coef, entropy_coef):
    """The formula, frame by frame."""
    flat = {name: x.reshape(-1, *x.shape[3:]).numpy() for name, x in frames.items()}
    terms = []
    for i in range(len(flat["actions"])):
        exponentials = [math.exp(x) for x in flat["logits"][i]]
        chances = [x / sum(exponentials) for x in exponentials]
        ratio = chances[flat["actions"][i]] / math.exp(flat["old_log_probs"][i])
        advantage, target = flat["advantages"][i], flat["returns"][i]
        bounded = min(max(ratio, 1 - clip), 1 + clip)
        policy = -min(ratio * advantage, bounded * advantage)
        value, old = flat["values"][i], flat["old_values"][i]
        near = old + min(max(value - old, -clip), clip)
        critic = max((value - target) ** 2, (near - target) ** 2)
        entropy = -sum(p * math.log(p) for p in chances)
        kl = ratio - 1 - math.log(ratio)
        terms.append((policy, critic, entropy, kl, abs(ratio - 1) > clip))
    policy, critic, entropy, *_ = means = np.mean(terms, axis=0)
    names = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction")
    loss = policy + value_coef * critic - entropy_coef * entropy
    return loss, dict(zip(names, means, strict=True))


def test_against_a_loop_over_frames():
    frames = random_frames(2, 5, 6)
    loss, statistics = ppo_loss(**frames, **SETTINGS)
    expected, parts = slow_loss(frames, **SETTINGS)
    # Means over 60 frames of double precision; the fraction is computed in single precision.
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert 0.2 < parts["clip_fraction"] < 0.9
    assert {n: x.item() for n, x in statistics.items()} == pytest.approx(parts, rel=1e-6)
    assert not any(x.requires_grad for x in statistics.values())


def test_a_ratio_of_1_gives_the_policy_gradient():
    frames = random_frames(3, 4, 2, spread=0)
    logits = frames["logits"].requires_grad_()
    frames["old_log_probs"] = frames["old_log_probs"].detach()
    loss, statistics = ppo_loss(**frames, clip=0.2, value_coef=0.0, entropy_coef=0.0)
    (found,) = torch.autograd.grad(loss, logits)
    reinforce = -(action_log_probs(logits, frames["actions"]) * frames["advantages"]).mean()
    (expected,) = torch.autograd.grad(reinforce, logits)
    torch.testing.assert_close(found, expected)
    assert statistics["clip_fraction"] == 0
    assert statistics["approximate_kl"] == pytest.approx(0, abs=1e-12)  # rounding alone


@pytest.mark.parametrize(
    ("ratio", "advantage", "learns"),
    [
        (1.3, 1.0, False),  # more probable already than it may become
        (1.3, -1.0, True),  # moved the wrong way: must come back
        (0.7, -1.0, False),
        (0.7, 1.0, True),
        (1.1, 1.0, True),
        (0.9, -1.0, True),
    ],
)
def test_the_gradient_vanishes_only_on_the_clipped_side(ratio, advantage, learns):
    frames = random_frames(1, 1, 1, spread=0)
    frames["advantages"] = torch.full((1, 1, 1), advantage, dtype=torch.double)
    frames["old_log_probs"] = frames["old_log_probs"] - math.log(ratio)
    logits = frames["logits"].requires_grad_()
    loss, _ = ppo_loss(**frames, clip=0.2, value_coef=0.0, entropy_coef=0.0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool(gradient.abs().max() > 1e-3) == learns
    if not learns:
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_values_do_not_run_far_from_the_old_ones():
    """They stop where they moved towards the target by more than the range, not away from it."""
    for value, target, learns in ((0.5, 2.0, False), (0.5, -1.0, True), (0.1, 2.0, True)):
        frames = random_frames(1, 1, 1)
        frames["values"] = torch.full((1, 1, 1), value, dtype=torch.double, requires_grad=True)
        frames["old_values"] = torch.zeros(1, 1, 1, dtype=torch.double)
        frames["returns"] = torch.full((1, 1, 1), target, dtype=torch.double)
        loss, _ = ppo_loss(**frames, clip=0.2, value_coef=1.0, entropy_coef=0.0)
        (gradient,) = torch.autograd.grad(loss, frames["values"])
        assert bool(gradient.abs().max() > 0) == learns


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


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**31),
    discount=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_the_recursion_is_the_sum_of_the_definition(sizes, seed, discount, decay):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, *sizes, generator=generator, dtype=torch.double)
    ends = torch.rand(sizes, generator=generator) < 0.3
    next_values = torch.randn(sizes[1:], generator=generator, dtype=torch.double)
    rollout = rewards, values, ends, next_values
    found = generalised_advantages(*rollout, discount=discount, decay=decay)
    # At most nine terms of order 1 in double precision, added in another order.
    slow = slow_advantages(*rollout, discount, decay)
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-12)


def test_against_cross_entropy_and_distributions_of_torch():
    """Frames that do not count have no gradient."""
    logits, actions = torch.randn(2, 5, 4, 7), torch.randint(0, 7, (2, 5, 4))
    mask = torch.rand(2, 5, 4) < 0.6
    loss, statistics = imitation_loss(logits, actions, mask, entropy_coef=0.1)
    expected = torch.nn.functional.cross_entropy(logits[mask], actions[mask])
    entropy = torch.distributions.Categorical(logits=logits[mask]).entropy().mean()
    accuracy = (logits[mask].argmax(-1) == actions[mask]).float().mean()
    torch.testing.assert_close(loss, expected - 0.1 * entropy)
    torch.testing.assert_close(statistics["cross_entropy"], expected)
    torch.testing.assert_close(statistics["entropy"], entropy)
    torch.testing.assert_close(statistics["accuracy"], accuracy)
    for counts in (mask, mask & False):
        given = logits.clone().requires_grad_()
        loss, statistics = imitation_loss(given, actions, counts, entropy_coef=0.1)
        loss.backward()
        assert given.grad is not None
        assert torch.equal(given.grad.abs().sum(-1) > 0, counts)
        assert all(math.isfinite(x) and not x.requires_grad for x in statistics.values())
    assert loss == 0

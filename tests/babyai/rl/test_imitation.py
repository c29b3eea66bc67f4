import math

import torch

from mttl.babyai.rl.imitation import imitation_loss


def random_frames():
    return torch.randn(2, 5, 4, 7), torch.randint(0, 7, (2, 5, 4)), torch.rand(2, 5, 4) < 0.6


def test_against_cross_entropy_and_distributions_of_torch():
    logits, actions, mask = random_frames()
    loss, statistics = imitation_loss(logits, actions, mask, entropy_coef=0.1)
    expected = torch.nn.functional.cross_entropy(logits[mask], actions[mask])
    entropy = torch.distributions.Categorical(logits=logits[mask]).entropy().mean()
    accuracy = (logits[mask].argmax(-1) == actions[mask]).float().mean()
    torch.testing.assert_close(loss, expected - 0.1 * entropy)
    torch.testing.assert_close(statistics["cross_entropy"], expected)
    torch.testing.assert_close(statistics["entropy"], entropy)
    torch.testing.assert_close(statistics["accuracy"], accuracy)


def test_frames_that_do_not_count_have_no_gradient():
    logits, actions, mask = random_frames()
    logits.requires_grad_()
    loss, statistics = imitation_loss(logits, actions, mask, entropy_coef=0.1)
    loss.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(-1) > 0, mask)
    assert not any(x.requires_grad for x in statistics.values())


def test_a_batch_in_which_nothing_counts_has_no_loss():
    logits, actions, mask = random_frames()
    logits.requires_grad_()
    loss, statistics = imitation_loss(logits, actions, mask & False, entropy_coef=0.1)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert all(math.isfinite(x) for x in statistics.values())

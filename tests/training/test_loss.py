import torch
from torch.nn import functional

from mttl.training.loss import global_mean, token_losses


def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 7, generator=generator)
    labels = torch.randint(0, 7, (3, 4), generator=generator)
    labels[0, 2:] = -100
    labels[2, 1:] = -100
    return logits, labels


def test_equals_cross_entropy_with_and_without_smoothing():
    logits, labels = batch()
    for smoothing in (0.0, 0.1):
        expected = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing
        )
        found = global_mean(token_losses(logits, labels, smoothing), labels)
        torch.testing.assert_close(found, expected)


def test_a_batch_without_any_label_has_loss_zero():
    logits, labels = batch()
    labels = torch.full_like(labels, -100)
    assert global_mean(token_losses(logits, labels), labels) == 0


def test_shares_of_a_step_add_up_to_the_mean_over_its_tokens():
    logits, labels = batch()
    losses = token_losses(logits, labels)
    tokens = (labels != -100).sum() / 3  # three batches of one row each
    shares = [global_mean(losses[[i]], labels[[i]], tokens) for i in range(3)]
    torch.testing.assert_close(sum(shares) / 3, global_mean(losses, labels))

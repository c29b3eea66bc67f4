import torch
from torch import nn

from mttl.sparse.scores import FisherScores, MovementScores, magnitude_of_change


def test_the_magnitude_of_change():
    start, end = {"w": torch.tensor([1.0, 2, 3])}, {"w": torch.tensor([1.5, 2, 1])}
    assert magnitude_of_change(start, end)["w"].tolist() == [0.5, 0, 2]


def test_movement_is_minus_the_rate_times_gradient_times_weight_summed_over_steps():
    weight = nn.Parameter(torch.tensor([2.0, -1, 3]))
    movement = MovementScores({"w": weight})
    expected = torch.zeros(3)
    for step in range(3):
        weight.grad = torch.randn(3)
        expected -= (0.1 + step) * weight.grad * weight.detach()
        movement.add(0.1 + step)
        with torch.no_grad():
            weight += 1
    torch.testing.assert_close(movement.scores["w"], expected)


def test_the_fisher_scores_are_the_mean_squared_gradient():
    layer = nn.Linear(3, 2)
    fisher = FisherScores({"w": layer.weight, "unused": nn.Parameter(torch.ones(2))})
    x = torch.randn(5, 3)
    expected = torch.zeros(2, 3)
    for row in x:
        (grad,) = torch.autograd.grad(layer(row).square().sum(), layer.weight)
        expected += grad.square() / 5
        layer.zero_grad()
        layer(row).square().sum().backward()
        fisher.add()
    torch.testing.assert_close(fisher.scores["w"], expected)
    assert fisher.scores["unused"].tolist() == [0, 0]

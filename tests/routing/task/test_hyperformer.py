import pytest
import torch
from torch import nn

from helpers.skills import filled, spread
from mttl.routing import HyperFormerRouter, Routing, RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear


class HyperNetwork(nn.Module):
    """Generates the two low-rank factors of one layer from an embedding of the task."""

    def __init__(self, n_tasks, embedding, hidden, n_in, n_out, rank):
        super().__init__()
        self.sizes = (n_in, n_out, rank)
        self.embedding = nn.Embedding(n_tasks, embedding)
        self.body = nn.Sequential(
            nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.to_down = nn.Linear(hidden, n_in * rank, bias=False)
        self.to_up = nn.Linear(hidden, n_out * rank, bias=False)

    def forward(self, task_ids):
        n_in, n_out, rank = self.sizes
        hidden = self.body(self.embedding(task_ids))
        return self.to_down(hidden).view(-1, n_in, rank), self.to_up(hidden).view(-1, n_out, rank)


def test_equals_a_hyper_network_that_generates_the_factors():
    n_tasks, embedding, n_skills, n_in, n_out, rank = 4, 5, 3, 6, 8, 2
    router = spread(HyperFormerRouter(1, n_tasks, 1, n_skills, embedding_size=embedding)).double()
    slot = RoutingSlot()
    inventory = filled(LoRAInventory(n_in, n_out, n_skills, rank=rank)).double()
    layer = SkilledLinear(nn.Linear(n_in, n_out).double(), inventory, slot, 0)

    network = HyperNetwork(n_tasks, embedding, n_skills, n_in, n_out, rank).double()
    with torch.no_grad():
        network.embedding.weight.copy_(router.embeddings[0])
        for linear, grouped in ((network.body[0], router.hidden), (network.body[2], router.output)):
            linear.weight.copy_(grouped.weight[0].t())
            linear.bias.copy_(grouped.bias[0, 0])
        # The last layer, without bias, is a mixture of its columns: these are the skills.
        network.to_down.weight.copy_(inventory.down.flatten(1).t())
        network.to_up.weight.copy_(inventory.up.flatten(1).t())

    x, task_ids = torch.randn(5, 3, n_in).double(), torch.tensor([3, 0, 1, 1, 2])
    with slot.use(Routing(task_ids, router(task_ids))):
        found = layer(x)
    down, up = network(task_ids)
    expected = layer.base(x) + x @ down @ up.transpose(1, 2) / rank
    torch.testing.assert_close(found, expected)

    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(router.embeddings.grad[0], network.embedding.weight.grad)
    torch.testing.assert_close(router.hidden.weight.grad[0].t(), network.body[0].weight.grad)
    torch.testing.assert_close(inventory.down.grad.flatten(1).t(), network.to_down.weight.grad)
    torch.testing.assert_close(inventory.up.grad.flatten(1).t(), network.to_up.weight.grad)


def test_new_tasks_keep_the_networks():
    router = spread(HyperFormerRouter(2, 3, 1, 4, embedding_size=5))
    grown = router.for_new_tasks(2)
    assert torch.equal(grown.hidden.weight, router.hidden.weight)
    assert torch.equal(grown.output.bias, router.output.bias)
    torch.testing.assert_close(grown.embeddings[:, 0], router.embeddings.mean(1))
    fresh = router.for_new_tasks(400, init="fresh")
    # As an untrained router: standard normal.
    assert fresh.embeddings.std().item() == pytest.approx(1, rel=0.1)
    assert not torch.equal(fresh.hidden.weight, router.hidden.weight)

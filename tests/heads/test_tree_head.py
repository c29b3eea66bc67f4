"""Biaffine scores, beside plain loops."""

import math

import torch
from torch.nn.functional import leaky_relu
from torch.testing import assert_close

from mttl.heads import HeadBatch, TreeHead
from mttl.metrics.trees import arcs_of, find_cycle

RELATIONS = ["root", "obj", "nsubj:pass"]
TREES = ["2:nsubj:pass 0:root 2:obj", "0:root 1:obj"]
STARTS = torch.tensor([[1, 2, 4], [0, 3, -1]])
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # double precision, sums in another order


def given(dropout: float = 0.0) -> tuple[TreeHead, torch.Tensor, HeadBatch]:
    head = TreeHead(6, RELATIONS, arc_features=5, relation_features=4, dropout=dropout).double()
    batch = HeadBatch(torch.ones(2, 5).bool(), STARTS, head.targets(TREES))
    return head, torch.randn(2, 5, 6, dtype=torch.float64), batch


def test_scores_and_loss_equal_loops():
    head, hidden, batch = given()
    arcs = head(hidden, batch)
    relations = head.relation_scores(hidden, batch, batch.targets["heads"])
    losses = head.losses(hidden, batch)
    for b, tree in enumerate(TREES):
        gold = [(int(place), RELATIONS.index(name)) for place, name in arcs_of(tree)]
        states = [head.root, *(hidden[b, place] for place in STARTS[b] if place >= 0)]
        h, d, rh, rd = (
            [leaky_relu(layer(state), 0.1) for state in states]
            for layer in (head.arc_heads, head.arc_words, head.relation_heads, head.relation_words)
        )
        one, loss = torch.ones(1, dtype=torch.float64), 0.0
        for i, (place, name) in enumerate(gold):
            u, bias = head.arcs.weight, head.arcs.bias
            scores = [h[j] @ u @ d[i + 1] + h[j] @ bias for j in range(len(states))]
            assert_close(arcs[b, i, : len(states)], torch.stack(scores), **ROUNDING)
            assert arcs[b, i, len(states) :].eq(-math.inf).all()
            pair = torch.cat([rh[place], one]), torch.cat([rd[i + 1], one])
            labels = [pair[0] @ weight @ pair[1] for weight in head.relation_weight]
            assert_close(relations[b, i], torch.stack(labels), **ROUNDING)
            loss -= (
                torch.stack(scores).log_softmax(0)[place] + torch.stack(labels).log_softmax(0)[name]
            )
        # Losses are of single precision, whose rounding is 6e-8.
        assert_close(losses[b].sum().double(), loss, rtol=1e-6, atol=1e-6)


def test_trained_heads_answer_with_the_trees():
    head, hidden, batch = given(dropout=0.1)
    before = [[int(place) for place, _ in arcs_of(text)] for text in head.answers(hidden, batch)]
    assert [len(own) for own in before] == [3, 2]
    assert all(own.count(0) == 1 and not find_cycle(own) for own in before)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        head.losses(hidden, batch).sum().backward()
        optimizer.step()
    assert all(value.grad.isfinite().all() and value.grad.any() for value in head.parameters())
    assert head.eval().answers(hidden, batch) == TREES

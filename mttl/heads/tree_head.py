"""Dependency trees of words."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad

from mttl.heads.head import Head, HeadBatch, padded, places_of, word_losses
from mttl.heads.spanning_tree import spanning_tree
from mttl.metrics.trees import arcs_of, tree_text


class TreeHead(Head):
    r"""A head and a relation for every word, by biaffine scores.

    Words are represented by first sub-words, and the root by a parameter. With :math:`h` and
    :math:`d` from networks of one layer, the scores of word i's head j, and of relation c to it,
    are

    .. math:: h_j^\top (U d_i + u), \qquad [h_j; 1]^\top W_c\, [d_i; 1].

    The loss is the cross-entropy of heads plus that of relations given the true head. The answer
    is the tree with the highest scores and one root. A text must not be cut, because any word may
    be a head.

    Args:
        features: Features D of the hidden states.
        relations: All relations.
        arc_features: Features of h and d for arcs.
        relation_features: Features of h and d for relations.
        dropout: Dropout probability of hidden states, and of h and d.

    References:
        Dozat and Manning, *Deep Biaffine Attention for Neural Dependency Parsing*, ICLR 2017,
        arXiv:1611.01734.
    """

    def __init__(
        self,
        features: int,
        relations: Sequence[str],
        *,
        arc_features: int = 500,
        relation_features: int = 100,
        dropout: float = 0.33,
    ) -> None:
        super().__init__()
        self.labels, self.dropout = list(relations), nn.Dropout(dropout)
        self.root = nn.Parameter(torch.randn(features) * features**-0.5)
        self.arc_heads, self.arc_words = (nn.Linear(features, arc_features) for _ in range(2))
        self.relation_heads, self.relation_words = (
            nn.Linear(features, relation_features) for _ in range(2)
        )
        self.arcs = nn.Linear(arc_features, arc_features)  # U and u
        shape = (len(self.labels), relation_features + 1, relation_features + 1)
        self.relation_weight = nn.Parameter(torch.randn(shape) * shape[-1] ** -0.5)

    def targets(self, answers: Sequence[str]) -> dict[str, Tensor]:
        trees = [arcs_of(text) for text in answers]
        names = [[name for _, name in tree] for tree in trees]
        return {
            "heads": padded([[int(head) for head, _ in tree] for tree in trees]),
            "relations": padded([places_of(row, self.labels, "relation") for row in names]),
        }

    def forward(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W V"]:
        """Return the scores of heads: the root, then the words; ``-inf`` after the last word."""
        states = self._states(hidden, batch)
        words = self._network(self.arc_words, states[:, 1:])
        scores = self.arcs(words) @ self._network(self.arc_heads, states).mT
        absent = pad(batch.word_starts < 0, (1, 0))
        return scores.masked_fill(absent.unsqueeze(1), -torch.inf)

    def relation_scores(
        self, hidden: Float[Tensor, "B L D"], batch: HeadBatch, heads: Int[Tensor, "B W"]
    ) -> Float[Tensor, "B W C"]:
        """Return the scores of the relations between words and given heads."""
        states = self._states(hidden, batch)
        places = heads.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
        heads_of, words = (
            pad(self._network(layer, own), (0, 1), value=1.0)
            for layer, own in (
                (self.relation_heads, states.gather(1, places)),
                (self.relation_words, states[:, 1:]),
            )
        )
        return torch.einsum("bwi,cij,bwj->bwc", heads_of, self.relation_weight, words)

    def losses(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W"]:
        heads, relations = batch.targets["heads"], batch.targets["relations"]
        scores = self.relation_scores(hidden, batch, heads)
        return word_losses(self(hidden, batch), heads) + word_losses(scores, relations)

    def answers(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[str]:
        scores = self(hidden, batch).detach().double().cpu().numpy()
        rows = zip(scores, batch.n_words(), strict=True)
        trees = [spanning_tree(own[:n, : n + 1]) for own, n in rows]
        heads = padded(trees).to(hidden.device)
        places = self.relation_scores(hidden, batch, heads).argmax(-1).tolist()
        names = [[self.labels[place] for place in row] for row in places]
        pairs = zip(trees, names, strict=True)
        return [tree_text(tree, row[: len(tree)]) for tree, row in pairs]

    def _states(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B V D"]:
        """Return the states of the root and of the words."""
        root = self.root.to(hidden.dtype).expand(len(hidden), 1, -1)
        return self.dropout(torch.cat([root, batch.words(hidden)], dim=1))

    def _network(self, layer: nn.Linear, states: Tensor) -> Tensor:
        return self.dropout(leaky_relu(layer(states), 0.1))

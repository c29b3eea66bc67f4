"""Labels of texts, or numbers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mttl.heads.head import Head, HeadBatch, ScoredParts, places_of
from mttl.io.errors import require_one_of


class LabelHead(Head):
    """A label for every text: a linear layer over a pooled hidden state.

    Without labels it is a regression with squared error. The heads of transformers'
    ``AutoModelForSequenceClassification`` are ``pool="first", dense=True`` (RoBERTa; BERT has no
    dropout before the dense layer) and ``pool="last", bias=False, dropout=0`` (Llama).

    Args:
        features: Features D of the hidden states.
        labels: All labels; empty for a regression.
        pool: State of the text: that of its ``"first"`` or ``"last"`` token, or the ``"mean"``.
        dense: Whether a linear layer (D, D) and tanh come before the output layer.
        bias: Whether the output layer has a bias.
        dropout: Dropout probability of each layer's input.

    Raises:
        ValueError: If ``pool`` is unknown.
    """

    def __init__(
        self,
        features: int,
        labels: Sequence[str] = (),
        *,
        pool: str = "first",
        dense: bool = False,
        bias: bool = True,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        require_one_of(("first", "mean", "last"), pool=pool)
        self.labels, self.pool, self.dropout = list(labels), pool, nn.Dropout(dropout)
        self.dense = nn.Linear(features, features) if dense else None
        self.output = nn.Linear(features, len(self.labels) or 1, bias=bias)

    def targets(self, answers: Sequence[str]) -> dict[str, Tensor]:
        if self.labels:
            return {"labels": torch.tensor(places_of(answers, self.labels, "label"))}
        try:
            return {"labels": torch.tensor([float(text) for text in answers])}
        except ValueError as error:
            raise ValueError(f"{error}; the answers of a regression must be numbers") from error

    def forward(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B C"]:
        pooled = self._pooled(hidden, batch.mask)
        if self.dense is not None:
            pooled = self.dense(self.dropout(pooled)).tanh()
        return self.output(self.dropout(pooled))

    def losses(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W"]:
        scores, labels = self(hidden, batch).float(), batch.targets["labels"]
        if self.labels:
            return cross_entropy(scores, labels, reduction="none")[:, None]
        return (scores[:, 0] - labels).square()[:, None]

    def scored(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[ScoredParts]:
        scores = self(hidden, batch).float()
        if not self.labels:  # the name is that of transformers
            return [[("LABEL_0", value)] for value in scores[:, 0].tolist()]
        shares, places = scores.softmax(-1).sort(dim=-1, descending=True)
        rows = zip(places.tolist(), shares.tolist(), strict=True)
        return [[(self.labels[i], share) for i, share in zip(*row, strict=True)] for row in rows]

    def answers(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[str]:
        scores = self(hidden, batch)
        if self.labels:
            return [self.labels[place] for place in scores.argmax(-1).tolist()]
        return [f"{value:.6g}" for value in scores[:, 0].tolist()]

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Float[Tensor, "B D"]:
        if self.pool == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1)
        ones = mask.int()
        last = mask.shape[1] - 1 - ones.flip(1).argmax(1)
        place = ones.argmax(1) if self.pool == "first" else last
        return hidden[torch.arange(len(hidden), device=hidden.device), place]

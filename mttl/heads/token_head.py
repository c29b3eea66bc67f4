"""Tags of words."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from mttl.heads.head import Head, HeadBatch, ScoredParts, padded, places_of, word_losses


class TokenHead(Head):
    """A tag for every word: dropout and a linear layer over its first sub-word.

    It is the head of transformers' ``AutoModelForTokenClassification`` with labels at first
    sub-words. An answer joins the tags by blanks.

    Args:
        features: Features D of the hidden states.
        tags: All tags.
        dropout: Dropout probability of the hidden states.
    """

    def __init__(self, features: int, tags: Sequence[str], *, dropout: float = 0.1) -> None:
        super().__init__()
        self.labels, self.dropout = list(tags), nn.Dropout(dropout)
        self.output = nn.Linear(features, len(self.labels))

    def targets(self, answers: Sequence[str]) -> dict[str, Tensor]:
        return {"tags": padded([places_of(text.split(), self.labels, "tag") for text in answers])}

    def forward(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W C"]:
        return self.output(self.dropout(batch.words(hidden)))

    def losses(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> Float[Tensor, "B W"]:
        return word_losses(self(hidden, batch), batch.targets["tags"])

    def answers(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[str]:
        rows = zip(self(hidden, batch).argmax(-1).tolist(), batch.n_words(), strict=True)
        return [" ".join(self.labels[place] for place in row[:n]) for row, n in rows]

    def scored(self, hidden: Float[Tensor, "B L D"], batch: HeadBatch) -> list[ScoredParts]:
        shares = self(hidden, batch).float().softmax(-1).amax(-1).tolist()
        rows = zip(self.answers(hidden, batch), shares, strict=True)
        return [list(zip(tags.split(), row, strict=False)) for tags, row in rows]

"""Section `heads`: heads of tasks with tags, labels or trees as answers."""

from typing import Literal

from pydantic import PositiveInt

from mttl.config.section import Section
from mttl.plugins.part_settings import Fraction


class Heads(Section):
    """Heads of tasks of the kinds `tokens`, `label` and `tree`."""

    dropout: Fraction = 0.1
    """Dropout of hidden states."""
    pool: Literal["auto", "first", "mean", "last"] = "auto"
    """State of a text that a label is predicted from: of its `first` or `last` token, or the
    `mean`; `auto`: first for encoders, last for decoder-only models, mean for encoder–decoders."""
    dense: bool = False
    """Put a dense layer with tanh before the labels, as BERT."""
    arc_features: PositiveInt = 500
    """Features of a word as head or dependent in a tree."""
    relation_features: PositiveInt = 100
    """Features of a word for the relation to its head."""

# ruff: noqa: F401 - for users of the package
"""HEADS: modules that turn the hidden states of a backbone into answers.

A `Head` has four methods. ``targets(answers)`` turns texts into tensors for a `HeadBatch`;
``losses(hidden, batch)`` returns one loss per word or text, ``scored(hidden, batch)`` the parts of
each answer with probabilities, and ``forward(hidden, batch)`` the scores that both read.

| head | answer |
|---|---|
| `TokenHead` | a tag per word: ``B-PER I-PER O`` |
| `LabelHead` | a label of the text, or a number |
| `TreeHead` | ``head:relation`` per word: ``2:nsubj 0:root 2:obj`` |
"""

from mttl.heads.head import Head, HeadBatch
from mttl.heads.label_head import LabelHead
from mttl.heads.spanning_tree import spanning_tree
from mttl.heads.token_head import TokenHead
from mttl.heads.tree_head import TreeHead

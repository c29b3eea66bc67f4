"""How one answer is compared with the accepted ones.

References:
    Ye, Lin and Ren, *CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in
    NLP*, EMNLP 2021, arXiv:2104.08835 (its published scoring). Normalisation and F1: Rajpurkar,
    Zhang, Lopyrev and Liang, *SQuAD*, EMNLP 2016, arXiv:1606.05250.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Return the text in lower case without punctuation, articles and superfluous blanks."""
    bare = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", bare).split())


def normalise_some(text: str) -> str:
    """Return the normalised text, with the articles or the punctuation that it consists of."""
    bare = text.lower().translate(PUNCTUATION)
    return normalise(text) or " ".join((bare.strip() or text.lower()).split())


def same_ignoring_case(prediction: str, reference: str) -> float:
    """Return 1 where both are equal but for case, else 0."""
    return float(prediction.lower() == reference.lower())


def exact_match(
    prediction: str, reference: str, normalise: Callable[[str], str] = normalise
) -> float:
    """Return 1 where both are equal after normalisation, else 0."""
    return float(normalise(prediction) == normalise(reference))


def word_f1(prediction: str, reference: str, normalise: Callable[[str], str] = normalise) -> float:
    """Return the F1 of the normalised words, counted with repetition.

    It is 0 where no word is shared, also where both are empty.
    """
    predicted, expected = normalise(prediction).split(), normalise(reference).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def best(compare: Callable[[str, str], float], prediction: str, references: Sequence[str]) -> float:
    """Return the best comparison of a stripped answer with any accepted one."""
    return max(compare(prediction.strip(), reference) for reference in references)

"""Reader of the published tables of XNLI, translated training pairs among them, and AmericasNLI."""

from collections.abc import Iterator
from pathlib import Path

from mttl.tasks.rows import read_records

_NAMES = {"sentence1": "premise", "sentence2": "hypothesis", "hypo": "hypothesis"}
_NAMES["gold_label"] = "label"


def read_nli(path: str | Path) -> Iterator[dict[str, str]]:
    """Yield premise, hypothesis, label, language and other columns of each pair.

    Training files, such as `multinli.train.fr.tsv`, have the language in their name, and the label
    `contradictory`, which becomes `contradiction`.

    References:
        Conneau et al., *XNLI: Evaluating Cross-lingual Sentence Representations*, EMNLP 2018,
        arXiv:1809.05053; https://github.com/facebookresearch/XNLI. Ebrahimi et al.,
        *AmericasNLI*, ACL 2022, arXiv:2104.08726.
    """
    parts = Path(path).name.split(".")
    of_file = {"language": parts[2]} if parts[:2] == ["multinli", "train"] else {}
    for record in read_records(path):
        pair = of_file | {_NAMES.get(name, name): value for name, value in record.items()}
        if pair.get("label") == "contradictory":
            pair["label"] = "contradiction"
        yield pair

"""The published MD5 sums of CrossFit's files: 160 tasks, five samples, train, dev and test.

References:
    Ye, Lin and Ren, CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in NLP,
    EMNLP 2021, arXiv:2104.08835; the sums come with its code, https://github.com/INK-USC/CrossFit.
"""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def published_sums() -> Mapping[str, Mapping[str, str]]:
    """Return the sums by task and by name of file, such as ``glue-rte_16_13_dev.tsv``.

    The table has a row per task: `k`, the sum of the test file, which all samples share, and those
    of train and dev of every sample.
    """
    table = files("mttl.tasks").joinpath("md5.csv").read_text("ascii").splitlines()
    return {row["task"]: _by_file(row) for row in csv.DictReader(table)}


def _by_file(row: dict[str, str]) -> dict[str, str]:
    samples = [name.removeprefix("train_") for name in row if name.startswith("train_")]
    return {
        f"{row['task']}_{row['k']}_{sample}_{split}.tsv": row[
            split if split == "test" else f"{split}_{sample}"
        ]
        for sample in samples
        for split in ("train", "dev", "test")
    }

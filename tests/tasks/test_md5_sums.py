import csv

import pytest

from helpers.fact_templates import SHARED
from mttl.tasks.md5_sums import published_sums
from mttl.tasks.table import crossfit


def test_every_file_has_a_sum():
    sums = published_sums()
    assert set(sums) == set(crossfit())
    assert sum(map(len, sums.values())) == 2400
    assert all(len(md5) == 32 for by_file in sums.values() for md5 in by_file.values())
    names = sums["glue-rte"]
    assert names["glue-rte_16_13_test.tsv"] == names["glue-rte_16_87_test.tsv"]
    assert names["glue-rte_16_13_dev.tsv"] != names["glue-rte_16_87_dev.tsv"]


def test_they_are_the_published_ones():
    path = SHARED / "crossfit_md5.csv"
    if not path.is_file():
        pytest.skip(f"the fact table crossfit_md5.csv is not at {SHARED}; set MTTL_SHARED")
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = "{task}_{k}_{sample}_{split}.tsv".format(**row)
            assert published_sums()[row["task"]][name] == row["md5"]

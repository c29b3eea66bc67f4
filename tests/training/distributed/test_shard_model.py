"""Two processes that share one model compute what one process does that has all of it.

Steps are plain gradient descent, which keeps differences as small as those of the gradients: the
order in which numbers are added, some 1e-6 of the largest.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.nodes import run_processes
from helpers.quantised import require
from helpers.sharded import CASES, SOME, work


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sharded")
    run_processes(work, folder, SOME)
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("name", SOME)
def test_the_processes_train_and_answer_as_one(results: dict[str, Any], name: str) -> None:
    check(results[name], name)


def check(found: dict[str, Any], name: str) -> None:
    # A base in half precision rounds what it is given by 1 in 256.
    error = 2e-2 if name.endswith("bfloat16") else 2e-5
    torch.testing.assert_close(found["losses"], found["losses alone"], rtol=error, atol=0)
    assert found["state"].keys() == found["state alone"].keys()
    for key, value in found["state alone"].items():
        torch.testing.assert_close(found["state"][key], value, rtol=error, atol=error, msg=key)
    if found["answers alone"]:
        assert found["answers"] == found["answers alone"]
    assert found["restored"]
    torch.testing.assert_close(
        found["probabilities"], found["probabilities alone"], rtol=error, atol=error
    )


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["float", "nf4"])
def test_all_other_cases(tmp_path: Path, packed: bool) -> None:
    if packed:
        require("nf4")
    names = [name for name in CASES if name not in SOME and name.startswith("nf4") == packed]
    run_processes(work, tmp_path, names)
    results = torch.load(tmp_path / "results.pt")
    for name in names:
        check(results[name], name)

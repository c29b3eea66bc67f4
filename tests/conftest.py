"""What all tests share: one thread, fixed seeds, no hub, and checked tensor shapes."""

import os
import sys
from collections import Counter
from pathlib import Path

# Before torch and transformers are imported, here and in processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jaxtyping
import pytest
import torch
from hypothesis import settings

# Test modules are imported one by one (importlib mode), so `helpers` needs a way to be found.
sys.path.insert(0, str(Path(__file__).parent))

from helpers.shapes import check_shapes

# Every annotated shape in these rooms is checked on every call that their own tests make; others
# would only be slower. The hook has to come before the first import of a room.
CHECKED = ["mttl.skills", "mttl.heads", "mttl.routing", "mttl.aggregation", "mttl.moe"]
CHECKED += ["mttl.babyai.rl"]
check_shapes(CHECKED)
ROOMS = tuple(Path(__file__).parent.joinpath(*room.split(".")[1:]) for room in CHECKED)

torch.set_num_threads(1)

# No test cuts the power, and a disk takes milliseconds for each file to be sure.
os.fsync = lambda descriptor: None

# The same examples in every run, and no deadline: machines differ.
settings.register_profile("mttl", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("mttl")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but every n-th case of a test with `every(n)` as slow."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("every")
        if marker and not item.get_closest_marker("slow"):
            test = item.nodeid.split("[")[0]
            if seen[test] % marker.args[0]:
                item.add_marker("slow")
            seen[test] += 1


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same random state."""
    # Not `torch.manual_seed`, which keeps a stack for every device that is not there.
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def checked_shapes(request: pytest.FixtureRequest) -> None:
    """Check shapes where a test is one of a checked room."""
    checked = any(room in request.path.parents for room in ROOMS)
    jaxtyping.config.update("jaxtyping_disable", not checked)


@pytest.fixture
def unchecked_shapes(checked_shapes: None) -> None:
    """Switch the shape checks off for one test: `torch.compile` cannot trace them."""
    jaxtyping.config.update("jaxtyping_disable", True)

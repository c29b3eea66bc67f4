"""What all tests share: one thread, fixed seeds, no hub, and checked tensor shapes."""

import os
import sys
from collections.abc import Iterator
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

# Every annotated shape in these rooms is checked on every call. It has to happen before the first
# import of any of them.
CHECKED = ["mttl.skills", "mttl.routing", "mttl.aggregation", "mttl.moe", "mttl.babyai.rl"]
jaxtyping.install_import_hook(CHECKED, "beartype.beartype")

torch.set_num_threads(1)

# The same examples in every run, and no deadline: machines differ.
settings.register_profile("mttl", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("mttl")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same random state."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Switch the shape checks off for one test: `torch.compile` cannot trace them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

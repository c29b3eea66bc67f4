"""What the tests of the package share, for those of the scripts."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from conftest import *  # noqa: E402, F403

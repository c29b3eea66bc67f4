import subprocess
import sys

import pytest

import mttl.data


def test_every_name_is_found():
    assert all(hasattr(mttl.data, name) for name in mttl.data.__all__)
    assert set(mttl.data.__all__) <= set(dir(mttl.data))
    with pytest.raises(AttributeError, match=r"module 'mttl\.data' has no attribute 'nothing'"):
        mttl.data.nothing  # noqa: B018


def test_building_a_gym_needs_no_torch():
    """Every process that builds would wait for it."""
    code = "import sys, mttl.data.build_many; print({'torch', 'datasets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"

import subprocess
import sys


def test_building_a_gym_needs_no_torch():
    """Every process that builds would wait for it."""
    code = (
        "import sys, mttl.gym.building.build_many; print({'torch', 'datasets'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"

"""Copies into a wheel what stands at the top of the repository, where people look for it.

Configurations, small data and commands lie in the package as ``mttl/shipped``; see
`mttl.shipped_files`. Editable installs read the repository itself. All else is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDERS = ("configs", "data/backbone", "data/grid", "data/lexical", "scripts")
# Of the scripts: what serves the development of the package.
LEFT_OUT = ("__pycache__", "*.pyc", ".*", "*_gym*", "benchmarks", "drills")
LEFT_OUT += ("*reference*", "write_tutorials.py")


class BuildWithShippedFiles(build_py):
    """The modules of the package, and what it ships."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "mttl" / "shipped"
        shutil.rmtree(target, ignore_errors=True)  # of an earlier build
        for folder in FOLDERS:
            ignore = shutil.ignore_patterns(*LEFT_OUT)
            shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
        for command in ROOT.glob("pl_*.py"):
            shutil.copy(command, target)


setup(cmdclass={"build_py": BuildWithShippedFiles})

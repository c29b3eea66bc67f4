"""Measure how long the commands take to answer what needs no model.

    python scripts/benchmarks/startup.py [--rounds 7] [--json FILE]

Every step starts a process. The floor is an interpreter that does nothing; processor time is that
of the processes, user and system together.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

from _common import Step, parse_arguments, report, run

ROOT = Path(__file__).parents[2]
COMMANDS = ("pl_train", "pl_finetune", "pl_search")
QUESTIONS = {
    "--help": ["--help"],
    "--version": ["--version"],
    "misspelt key": ["-c", "crossfit.yaml", "-k", "skills.rnk=4"],
    "missing file": ["-c", "missing.yaml"],
}
FLOOR = "python"
VARIANTS = (FLOOR, *(f"{command} {question}" for command in COMMANDS for question in QUESTIONS))


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Time of answers that need no model.")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=())
    rows = []
    for name, clock in (("processor", processor_time), ("wall", time.perf_counter)):
        rows += [{**row, "name": f"{row['name']}, {name}"} for row in run(build, settings, clock)]
    report(rows, settings, title="answers without a model", unit="ms", columns={})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Return a step that starts the process of a variant and waits for it."""
    arguments = ["-c", "pass"] if variant == FLOOR else command_line(variant)
    return lambda: subprocess.run([sys.executable, *arguments], capture_output=True), {}


def command_line(variant: str) -> list[str]:
    """Return what follows ``python`` for a command and a question."""
    command, _, question = variant.partition(" ")
    run_folder = ["--from", "runs/none"] if command != "pl_train" else []
    return [str(ROOT / f"{command}.py"), *run_folder, *QUESTIONS[question]]


def processor_time() -> float:
    """Return the seconds that ended processes have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())

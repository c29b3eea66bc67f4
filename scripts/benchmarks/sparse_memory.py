"""Measure what training a sparse skill costs beside full fine-tuning: optimizer state and time.

    python scripts/benchmarks/sparse_memory.py [--density 0.01] [--json FILE]

The floor is the forward and backward pass of full fine-tuning without an optimizer. Sparse tuning
computes the same gradients, keeps those of its support, and lets AdamW update these entries alone.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from _common import Step, parse_arguments, positive, report, run
from _models import make_backbone

if TYPE_CHECKING:  # the parent process never loads these
    from torch.optim import Optimizer

FLOOR = "forward and backward"
FULL, SPARSE = "full + AdamW", "sparse + AdamW"
VARIANTS = (FLOOR, FULL, SPARSE)
MIB = 2**20


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of tuning few entries of all weights.")
    parser.add_argument("--density", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument("--examples", type=positive, default=8, help="rows (%(default)s)")
    parser.add_argument("--tokens", type=positive, default=64, help="of a row (%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv)
    rows = run(build, settings)
    full = next((row.get("state_mib") for row in rows if row["name"] == FULL), None)
    for row in rows:
        if full and "state_mib" in row:
            row["state_percent"] = 100 * row["state_mib"] / full
    columns = {"state_mib": "optimizer state, MiB", "peak_mib": "peak memory, MiB above start"}
    if full:
        columns["state_percent"] = "state, % of full"
    title = f"a training step, {100 * settings.density:g} % of the weights"
    report(rows, settings, title=title, unit="ms", columns=columns)
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant; its optimizer has taken one step, so that its state is there."""
    import torch

    from mttl.skills.weights.supports import random_support
    from mttl.sparse.tuning import SparseTuning

    model = make_backbone(settings.size)
    parameters = dict(model.named_parameters())
    model.requires_grad_(True)
    tuning, trained = None, list(parameters.values())
    if variant == SPARSE:
        shapes = {name: value.shape for name, value in parameters.items()}
        tuning = SparseTuning(model, random_support(shapes, settings.density))
        trained = tuning.parameters()
    optimizer = None if variant == FLOOR else torch.optim.AdamW(trained, weight_decay=0.0)
    shape = (settings.examples, settings.tokens)
    batch = {
        name: torch.randint(2, model.config.vocab_size, shape) for name in ("input_ids", "labels")
    }

    def step() -> None:
        model(**batch).loss.backward()
        if optimizer is not None:
            optimizer.step()
        if tuning is not None:
            tuning.write()
        for value in trained:
            value.grad = None

    step()
    return step, {"state_mib": 0.0 if optimizer is None else state_bytes(optimizer) / MIB}


def state_bytes(optimizer: "Optimizer") -> int:
    """Return the size of all tensors that an optimizer keeps."""
    held: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() * value.element_size() for value in held)


if __name__ == "__main__":
    sys.exit(main())

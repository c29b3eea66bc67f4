"""Compare the ways in which a layer's sparse skills are mixed for a batch of different tasks.

    python scripts/benchmarks/sparse_mixing.py [--features 512] [--batches 16x8 64x16 16x64] [--json FILE]

A step is forward and backward of one layer, every example with weights of its own. The floor is the
frozen layer alone.
"""  # noqa: E501

import argparse
import sys
from typing import Any

from _common import Step, parse_arguments, positive, report, run

FLOOR = "base layer"
VARIANTS = (FLOOR, "deltas", "outputs", "auto")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of sparse skills, by way of mixing.")
    parser.add_argument("--features", type=positive, default=512, help="in and out (%(default)s)")
    parser.add_argument("--skills", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--density", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument("--batches", type=batch, nargs="+", default=[(16, 8), (64, 16), (16, 64)])
    settings = parse_arguments(parser, VARIANTS, argv, sizes=())
    rows: list[dict[str, Any]] = []
    for n_examples, n_positions in settings.batches:
        case = {"n_examples": n_examples, "n_positions": n_positions}
        found = run(build, argparse.Namespace(**vars(settings), **case))
        rows += [{**row, "name": f"{n_examples}x{n_positions} {row['name']}"} for row in found]
    title = f"{settings.skills} sparse skills at {100 * settings.density:g} %"
    report(rows, settings, title=title, unit="ms", columns={"peak_mib": "peak memory, MiB"})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant."""
    import torch

    from mttl.skills import SparseInventory

    torch.manual_seed(0)
    features = settings.features
    base = torch.nn.Linear(features, features).requires_grad_(False)
    x = torch.randn(settings.n_examples, settings.n_positions, features, requires_grad=True)
    direction = torch.randn_like(x)
    if variant == FLOOR:
        return lambda: base(x).backward(direction), {}
    inventory = SparseInventory(
        features, features, settings.skills, sparsity=1 - settings.density, mix=variant
    )
    weights = torch.rand(settings.n_examples, 1, settings.skills).softmax(-1).requires_grad_()

    def step() -> None:
        for value in (x, weights, inventory.values):
            value.grad = None
        merged = inventory.merge(weights)
        inventory.combine_linear(x, base, merged).backward(direction)

    return step, {}


def batch(text: str) -> tuple[int, int]:
    """Read ``EXAMPLESxPOSITIONS``."""
    n_examples, _, n_positions = text.partition("x")
    return positive(n_examples), positive(n_positions)


if __name__ == "__main__":
    sys.exit(main())

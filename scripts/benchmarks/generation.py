"""Compare the speed of generation: the bare backbone, and with skills.

    python scripts/benchmarks/generation.py [--size tiny] [--rounds 7] [--json FILE]
    python scripts/benchmarks/generation.py --rows 256 --tokens 8 --beams 1
    python scripts/benchmarks/generation.py --device cuda --dtype bfloat16

Each call generates the same number of tokens for examples of 128 tokens, one of each of 16 tasks or
more: greedily, and with 4 beams. Figures are tokens per second; the floor is the bare backbone at
the same number of beams, which is also what a task folded into the backbone costs.
"""

import argparse
import sys
from typing import Any

from _common import Step, as_speed, on_device, parse_arguments, positive, report, run
from _models import N_TASKS, add_adapters, make_backbone, task_ids

FLOOR = "bare"
VARIANTS = (FLOOR, "PEFT Poly H=1", "ours H=1", "ours H=4", "ours, one task H=1")
LENGTH_IN = 128


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Tokens per second, by kind of adapter.")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens (%(default)s)")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="(%(default)s)")
    parser.add_argument(
        "--rows", type=positive, default=N_TASKS, help="rows of a call (%(default)s)"
    )
    settings = parse_arguments(parser, VARIANTS, argv, devices=True)
    rows: list[dict[str, Any]] = []
    for n_beams in settings.beams:
        with_beams = argparse.Namespace(**vars(settings), n_beams=n_beams)
        name = "greedy" if n_beams == 1 else f"{n_beams} beams"
        found = [as_speed(row, settings.rows * settings.tokens) for row in run(build, with_beams)]
        rows += [{**row, "name": f"{row['name']}, {name}"} for row in found]
    title = f"generation, {settings.size}, {settings.rows} x {LENGTH_IN} in, {settings.tokens} out"
    report(rows, settings, title=title, unit="tokens/s", columns={"peak_mib": "peak MiB"})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the call that generates."""
    import torch

    backbone = make_backbone(settings.size)
    model: torch.nn.Module = backbone if variant == FLOOR else add_adapters(backbone, variant)
    model.eval()
    batch = {
        "input_ids": torch.randint(2, backbone.config.vocab_size, (settings.rows, LENGTH_IN)),
        "num_beams": settings.n_beams,
        "do_sample": False,
        # No end before the last token: all variants decode the same number of steps.
        "min_new_tokens": settings.tokens,
        "max_new_tokens": settings.tokens,
        **task_ids(variant, settings.rows),
    }
    model, batch, context = on_device(settings, model, batch)

    def step() -> "torch.Tensor":
        with context:
            return model.generate(**batch)  # type: ignore[operator]

    return step, {}


if __name__ == "__main__":
    sys.exit(main())

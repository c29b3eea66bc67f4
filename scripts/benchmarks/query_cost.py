"""Measure what a query costs in several runs, beside the bare backbone of the first.

    python scripts/benchmarks/query_cost.py arrow=runs/arrow uniform=runs/uniform [--json FILE]

A query is a batch of rows like the first run's longest, of all its tasks in turn, answered greedily
with equally many tokens. All runs have to be above one backbone.
"""

import argparse
import sys

from _common import Step, parse_arguments, positive, report, run

FLOOR = "bare backbone"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="What a query costs, by run.")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="folders of runs")
    parser.add_argument("--rows", type=positive, default=32, help="of a query (%(default)s)")
    given = sys.argv[1:] if argv is None else argv
    known, _ = parser.parse_known_args(given)
    folders = dict(text.partition("=")[::2] for text in known.runs)
    settings = parse_arguments(parser, (FLOOR, *folders), given, ())
    settings.folders = folders
    rows = run(build, settings)
    columns = {"resident_mib": "memory, MiB"}
    report(rows, settings, title=f"{settings.rows} rows", unit="ms", columns=columns)
    return int(any("error" in row for row in rows))


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the query of a variant."""
    import torch
    from skill_cost import answering

    from mttl.build.model import load_run

    torch.manual_seed(0)
    first = next(iter(settings.folders.values()))
    built = load_run(settings.folders.get(variant, first))
    if variant != FLOOR:
        return answering(built, built.model, settings.rows), {}
    from mttl.merging.fold import strip

    layers = built.model.token_layers()
    if layers:
        raise ValueError(f"'{first}' routes tokens: name a run whose tasks mix skills first")
    return answering(built, strip(built.model).backbone, settings.rows), {}


if __name__ == "__main__":
    sys.exit(main())

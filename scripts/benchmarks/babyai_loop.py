"""Where the time of a BabyAI training goes: environments, policy, optimisation, Lightning.

    python scripts/benchmarks/babyai_loop.py [-c babyai.yaml] [--rollouts 8] [--json FILE]

The training of the configuration runs for some rollouts after one that is not counted. Times are
wall-clock; "environments" is all that happens in their step, "policy" the rest of playing a
rollout, "optimisation" forward, backward and the optimizer's step on minibatches, "loop" what
Lightning and the callbacks add. The floor is the whole.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from envs.levels import LevelError
from mttl.commands.options import CommandParser, positive
from mttl.io.errors import ConfigError, MttlError

if TYPE_CHECKING:
    from mttl.config.babyai_schema import BabyAIConfig

PARTS = ("whole", "environments", "policy", "optimisation", "loop")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = CommandParser(description="Where the time of a BabyAI training goes.")
    parser.add_argument("-c", "--config", default="babyai.yaml", help="(%(default)s)")
    parser.add_overrides("settings that override the file")
    parser.add_argument("--rollouts", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--threads", type=positive, default=1, help="of PyTorch (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    settings = parser.parse_args(argv)
    import torch
    from _timed_rollouts import measure

    from mttl.config.babyai_schema import BabyAIConfig
    from mttl.config.load import load_any_config

    torch.set_num_threads(settings.threads)
    try:
        config = load_any_config(settings.config, settings.override)
        if not isinstance(config, BabyAIConfig):
            raise ConfigError(f"'{settings.config}' has no section rl")
        watch, n_frames = measure(config, settings.rollouts)
    except (MttlError, LevelError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = summarise(watch.rollouts[1:])
    report(rows, n_frames, config, settings)
    return 0


def summarise(rollouts: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row per part: milliseconds of a rollout and their share of the whole."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rollouts:
        playing, environments = row["playing"], row["environments"]
        times["whole"].append(row["whole"])
        times["environments"].append(environments)
        times["policy"].append(playing - environments)
        times["optimisation"].append(row["optimisation"])
        times["loop"].append(row["whole"] - playing - row["optimisation"])
    return [
        {
            "name": part,
            "median": 1000 * median(times[part]),
            "min": 1000 * min(times[part]),
            "max": 1000 * max(times[part]),
            "ratio": median(
                t / whole for t, whole in zip(times[part], times["whole"], strict=True)
            ),
        }
        for part in PARTS
    ]


def report(
    rows: list[dict[str, Any]], n_frames: int, config: "BabyAIConfig", settings: argparse.Namespace
) -> None:
    """Print the table, and write it where ``--json`` says."""
    speed = 1000 * n_frames / rows[0]["median"]
    table = Table(title=f"{settings.config}: {n_frames:,} frames a rollout, {speed:,.0f} a second")
    table.add_column("part")
    table.add_column("ms: min / median / max", justify="right")
    table.add_column("ratio to whole", justify="right")
    for row in rows:
        spread = f"{row['min']:.0f} / {row['median']:.0f} / {row['max']:.0f}"
        table.add_row(row["name"], spread, f"{row['ratio']:.3f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if settings.json:
        shown = {key: str(value) for key, value in vars(settings).items() if key != "json"}
        shown |= {"frames_per_second": speed, "backend": config.rl.backend, "unit": "ms"}
        text = json.dumps({"rows": rows, "settings": shown}, indent=2)
        settings.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

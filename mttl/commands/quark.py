"""Train a run's answers to score high by a metric, in rounds of sampling and training (Quark).

mttl quark runs/talk --task guide --metric knowledge_f1 --out runs/quark -k trainer.max_steps=500

Each round samples an answer to every training row from the last round's model. It divides the
answers of all rounds into bins by their scores, and trains with the bin as a code in the input. The
new run answers with the highest code. Other tasks of the run are trained on their own rows. An
interrupted command continues; earlier rounds are in OUT.rounds.
"""

import argparse
from pathlib import Path

from mttl.commands.name_checks import check_run_task
from mttl.commands.options import POSITIVE, CommandParser, command, whole
from mttl.commands.predict import above_zero
from mttl.io.errors import ConfigError
from mttl.metrics.metric_names import check_metric


def _declare(parser: CommandParser) -> None:
    parser.add_source()
    add = parser.read.add_argument
    add("--task", required=True, metavar="NAME", help="task of the run")
    add("--metric", required=True, metavar="NAME", help="metric of answers, with settings")
    parser.add_overrides("settings that override the run's; may be repeated")
    add = parser.work.add_argument
    add("--bins", type=whole(2), default=5, metavar="N", help="bins of scores (%(default)s)")
    add("--rounds", **POSITIVE, default=4, help="rounds of sampling and training (%(default)s)")
    help = "weight of the divergence from the run (%(default)s)"
    add("--divergence", type=above_zero, default=0.05, metavar="WEIGHT", help=help)
    add("--batch-size", **POSITIVE, default=64, help="sampled answers per batch (%(default)s)")
    parser.add_out("folder of the new run", type=Path)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Run the rounds."""
    check_metric(options.metric, ConfigError, "--metric")
    check_run_task(options.task, options.source)
    from mttl.commands.quark_rounds import run_rounds

    run_rounds(options)

"""Measure what each skill contributes: score every task with the skill switched off.

mttl ablate runs/crossfit
mttl ablate runs/crossfit --loss --rows 32
mttl ablate runs/crossfit --per-group --loss --out runs/crossfit/ablation-groups

A skill is switched off by setting its mixing weight to 0 for all tasks; each task is scored on its
development rows, and each level on its evaluation episodes with greedy actions. The other weights
are unchanged; --share rescales them to the same sum.

Groups of layers number their skills independently. By default skills are matched by their use (see
`skill_matching.align_groups`) and switched off in all groups together; --per-group switches them
off in one group at a time. An interrupted command continues. OUT gets results.jsonl, ablation.npz
and the figure `ablation` (PNG, SVG, PDF), which shows the effects next to the routing.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mttl.commands.name_checks import check_routing
from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.runtime.command import make_console, say
from mttl.runtime.text_table import TextTable

if TYPE_CHECKING:
    from mttl.analysis.routing_record import Ablation
    from mttl.analysis.routing_view import RoutingView

MOST_SHOWN = 4


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    parser.add_backbone()
    add = parser.work.add_argument
    add("--loss", action="store_true", help="compute only the loss, which is faster")
    add("--per-group", action="store_true", help="switch off in one group of layers at a time")
    help = "rescale the weights of the other skills to the same sum"
    add("--share", action="store_true", help=help)
    add("--rows", **POSITIVE, help="rows or episodes per task (as in validation or evaluation)")
    out = parser.written
    out.add_argument("--out", metavar="DIR", help="folder for results and figure (RUN/ablation)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Run the ablation, print its table and draw its figure."""
    check_routing(options.run)
    from mttl.analysis.figures.canvas import save_figure
    from mttl.analysis.figures.catalogue import ablation_map
    from mttl.analysis.routing_record import FILE, FOLDER, read_ablation
    from mttl.analysis.skill_matching import group_agreement
    from mttl.commands.ablate_skills import ablate
    from mttl.commands.routing_report.read_routing import read_view

    run = Path(options.run)
    out = Path(options.out) if options.out else run / FOLDER
    view = read_view(run)  # fails early for a run without routing
    ablate(run, out, options)
    found = read_ablation(out / FILE)
    assert found is not None
    make_console().print(ablation_table(found))
    agreement = group_agreement(view.record.weights)
    if agreement is not None and not options.per_group:
        say(
            f"Matched skills of {len(found.groups)} groups of layers: mean correlation of their "
            f"use {agreement.value:.3f} (permutation test: mean {agreement.mean:.3f}, 95th "
            f"percentile {agreement.percentile_95:.3f}, p {agreement.p_value:.3f})"
        )
    if not options.per_group:
        say(use_and_effect(view, found))
        save_figure(ablation_map(view, found), out / "ablation")
    say(f"The results are in {out}")


def ablation_table(found: "Ablation") -> TextTable:
    """Return a table of the tasks that each skill's removal harms most."""
    import numpy as np

    table = TextTable(f"Change of the {found.quantity} without a skill").words("layers", "skill")
    table.numbers("mean over tasks").words("tasks that lose most")
    places = 3 if found.scores is None else 1
    worse = found.losses if found.scores is None else -found.scores
    for part, layers in enumerate(found.layers):
        for skill in range(worse.shape[2]):
            order = np.argsort(-worse[part, :, skill], kind="stable")[:MOST_SHOWN]
            changes = found.changes[part, :, skill]
            shown = (f"{found.tasks[task]} {changes[task]:+.{places}f}" for task in order)
            table.add(layers, skill, f"{changes.mean():+.{places}f}", ", ".join(shown))
    return table


def use_and_effect(view: "RoutingView", found: "Ablation") -> str:
    """Return a sentence on the correlation of skill weights and ablation effects."""
    import numpy as np

    from mttl.analysis.skill_matching import matched

    weights = matched(view.record.weights, found.pairs).mean(0)
    harm = found.losses[0] if found.scores is None else -found.scores[0]
    n_tasks, n_skills = weights.shape
    text = "Weights and the effect of removing a skill"
    if min(weights.std(), harm.std()) > 0:
        text += f" correlate {np.corrcoef(weights.ravel(), harm.ravel())[0, 1]:.2f}"
    same = int(((weights.argmax(1) == harm.argmax(1)) & (harm.max(1) > 0)).sum())
    return (
        f"{text}; for {same} of {n_tasks} tasks the skill with the largest weight also has the "
        f"largest effect (1 of {n_skills} expected by chance)"
    )

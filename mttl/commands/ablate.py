"""Show what each skill does: switch it off, and score every task without it.

mttl ablate runs/crossfit
mttl ablate runs/crossfit --loss --rows 32
mttl ablate runs/crossfit --per-group --loss --out runs/crossfit/ablation-groups

A skill is switched off by setting its mixing weight to 0, for all tasks at once: each is scored by
its own development rows. The other weights stay what they are; with --share they take over its
weight, so that rows keep their sum, which asks how well the others do in its place.

Groups of layers number their skills independently. By default they are matched by their use (see
`skill_matching.align_groups`) and switched off in all groups together; --per-group switches them
off in one group at a time. An interrupted command continues. OUT gets results.jsonl, ablation.npz
and the figure ablation (PNG, SVG, PDF), which shows the matrix next to the routing.
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
    add("--loss", action="store_true", help="compute only the loss: answers take longer")
    add("--per-group", action="store_true", help="one group of layers at a time")
    add("--share", action="store_true", help="share the skill's weight among the others")
    add("--rows", **POSITIVE, help="rows of every task (as many as in validation)")
    out = parser.written
    out.add_argument("--out", metavar="DIR", help="where to write (RUN/ablation)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Switch off, draw and print."""
    check_routing(options.run)
    from mttl.analysis.figures.canvas import save_figure
    from mttl.analysis.figures.catalogue import ablation_map
    from mttl.analysis.routing_record import FILE, FOLDER, read_ablation
    from mttl.analysis.skill_matching import group_agreement
    from mttl.commands.ablate_skills import ablate
    from mttl.commands.routing_report.read_routing import read_view

    run = Path(options.run)
    out = Path(options.out) if options.out else run / FOLDER
    view = read_view(run)  # a run that has no routing to show ends here, before it is loaded
    ablate(run, out, options)
    found = read_ablation(out / FILE)
    assert found is not None
    make_console().print(ablation_table(found))
    agreement = group_agreement(view.record.weights)
    if agreement is not None and not options.per_group:
        say(
            f"Skills that were matched across {len(found.groups)} groups of layers correlate "
            f"{agreement.value:.3f} (chance {agreement.mean:.3f}, 95th percentile "
            f"{agreement.percentile_95:.3f}, p {agreement.p_value:.3f})"
        )
    if not options.per_group:
        say(use_and_effect(view, found))
        save_figure(ablation_map(view, found), out / "ablation")
    say(f"The matrix is in {out}")


def ablation_table(found: "Ablation") -> TextTable:
    """Return which tasks lose most by every skill: the mean over parts of the network."""
    import numpy as np

    table = TextTable(f"Change of the {found.quantity} without a skill").words("layers", "skill")
    table.numbers("mean over tasks").words("tasks that change most for the worse")
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
    """Return how the weights of skills and the effects of removing them agree."""
    import numpy as np

    from mttl.analysis.skill_matching import matched

    weights = matched(view.record.weights, found.pairs).mean(0)
    harm = found.losses[0] if found.scores is None else -found.scores[0]
    n_tasks, n_skills = weights.shape
    text = "Weights and the effect of removing a skill"
    if min(weights.std(), harm.std()) > 0:
        text += f" correlate {np.corrcoef(weights.ravel(), harm.ravel())[0, 1]:.2f}"
    same = int((weights.argmax(1) == harm.argmax(1)).sum())
    return (
        f"{text}; for {same} of {n_tasks} tasks the skill with most weight is the one with the "
        f"largest effect (1 of {n_skills} by chance)"
    )

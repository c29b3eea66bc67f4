"""Draw what the router of a run learned, and print its statistics.

mttl plot runs/crossfit
mttl plot runs/seed13 --compare runs/seed14
mttl plot runs/crossfit --adapted runs/crossfit/models/past
mttl plot runs/crossfit --gradients
mttl plot runs/arrow --count dev

The figures go to RUN/plots, as PNG, SVG and PDF: heat maps of tasks by skills, trees of tasks,
their similarity and a map of them, statistics over layers and training. --all adds the subsets of
skills in use, and the statistics of every group of layers to the printed means.
--adapted shows tasks that were adapted from the run next to its own. --gradients shows the cosines
between the gradients of tasks with respect to the skills: gradients.csv, a figure and a table.

If tokens choose experts, it also shows their loads, what determines the choice, and the tokens
of each expert. A run that was made of a library has no counts yet: --count makes them, on rows of
its members' tasks. If TASKS.csv of the gym has a column `factors` (language=de operation=date),
a table shows how well skills, matched to the factors' values, recover them, compared with chance.
Groups of layers number their skills independently, so means over layers show little if there are
many groups; trees and similarities compare tasks within each group.
"""

import argparse
from itertools import chain
from pathlib import Path

from mttl.checkpoints.inventory_files import inventory_folder
from mttl.commands.name_checks import check_different, check_routing
from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.io.errors import ConfigError
from mttl.io.files import write_table
from mttl.runtime.command import make_console, say


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    help = "a run of another seed, whose skills are matched"
    parser.read.add_argument("--compare", metavar="RUN2", help=help)
    parser.add_adapted()
    add = parser.work.add_argument
    rows = dict(POSITIVE, metavar="ROWS", nargs="?", const=32)
    help = "compare the gradients of tasks, each of so many training rows (%(const)s)"
    add("--gradients", **rows, help=help)
    help = "count which experts tokens choose, on the rows of this split"
    add("--count", choices=("dev", "test"), help=help)
    help = "also statistics of every group of layers, and the subsets of skills in use"
    add("--all", action="store_true", help=help)
    parser.written.add_argument("--out", metavar="DIR", help="where to write (RUN/plots)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print the statistics and draw the figures."""
    if options.adapted and (options.compare or options.gradients):
        raise ConfigError("--adapted cannot be combined with --compare or --gradients")
    check_different("--adapted", options.adapted)
    if not options.count:  # --count writes the routing
        check_routing(options.run)
    check_routing(*filter(None, [options.compare]))
    for folder in options.adapted:
        inventory_folder(folder)

    # They need matplotlib.
    from mttl.analysis.figures.canvas import save_figure
    from mttl.analysis.figures.catalogue import drawings, token_drawings
    from mttl.analysis.token_record import has_token_record, read_token_record
    from mttl.commands.routing_report.read_routing import read_view, task_factors, token_view
    from mttl.commands.routing_report.routing_tables import (
        comparison_table,
        expert_table,
        gradient_cosines,
        gradient_table,
        likeness_table,
        load_table,
        statistics_table,
    )

    console = make_console()
    run = Path(options.run)
    if options.count:
        count_choices(run, options.count)
    tokens = read_token_record(run) if has_token_record(run) else None
    view = read_view(run, options.adapted, options.backbone)
    other = read_view(Path(options.compare)).aligned_with(view) if options.compare else None
    folder = Path(options.out) if options.out else view.record.folder / "plots"

    console.print(statistics_table(view, every=options.all))
    if options.adapted:
        console.print(likeness_table(view, len(options.adapted)))
    console.print(comparison_table(view, other, task_factors(run, view.record.tasks)))
    figures = drawings(view, other, subsets=options.all)
    if options.gradients:
        from mttl.analysis.figures.heat_maps import similarity_matrix

        cosines, tasks = gradient_cosines(run, options.gradients), view.record.tasks
        console.print(gradient_table(cosines, tasks, view.categories))
        columns = ["task", *tasks]
        both = zip(tasks, cosines.tolist(), strict=True)
        rows = [dict(zip(columns, [task, *row], strict=True)) for task, row in both]
        write_table(folder / "gradients.csv", columns, rows)
        drawn = similarity_matrix(
            *(cosines, tasks),
            order=view.order,
            categories=view.categories,
            title=f"{view.name}: cosines of the gradients of tasks",
            quantity="cosine",
        )
        figures = chain(figures, [("gradients", drawn)])
    if tokens is not None:
        console.print(load_table(tokens))
        console.print(expert_table(tokens))
        figures = chain(figures, token_drawings(tokens, view.name))
        if (run / "plots" / "routing.npz").is_file():  # without it, the view shows the tokens
            shares = drawings(token_view(run, tokens))
            figures = chain(figures, ((f"tokens_{name}", figure) for name, figure in shares))
    n_figures = 0
    for name, figure in figures:
        save_figure(figure, folder / name)
        say(f"drawn: {name}", stderr=True)
        n_figures += 1
    say(f"{n_figures} figures are in {folder}, as PNG, SVG and PDF")


def count_choices(run: Path, split: str) -> None:
    """Count which experts tokens choose on the rows of a split, and write the run's record."""
    from mttl.commands.routing_report.read_routing import open_run
    from mttl.training.report import write_token_routing

    opened = open_run(run, "leave --count out")
    module, data = opened.module, opened.data
    if not module.model.token_layers():
        raise ConfigError(f"'{run}' routes no tokens; leave --count out")
    path = run / "plots" / "token_routing.npz"
    write_token_routing(path, module, data.evaluation_dataloader(split))

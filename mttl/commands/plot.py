"""Plot the routing of a run, and print its statistics.

mttl plot runs/crossfit
mttl plot runs/seed13 --compare runs/seed14
mttl plot runs/crossfit --adapted runs/crossfit/models/past
mttl plot runs/crossfit --gradients
mttl plot runs/arrow --count dev

Figures go to RUN/plots as PNG, SVG and PDF: heat maps of tasks by skills, trees of tasks,
similarities and a map of tasks, statistics over layers and over training. --all adds the subsets of
skills in use, and statistics of every group of layers. --adapted adds adapted tasks to the figures.
--gradients computes cosines between the tasks' gradients with respect to the skills: gradients.csv,
a figure and a table. If tokens choose experts, there are also figures of the experts' loads, of
what determines the choice, and of the tokens of each expert; of policies, a token is the content of
a cell, and the previous token the next cell ahead. A run made from a library has no
counts yet; --count computes them on rows of its tasks. If TASKS.csv has a column `factors`
(language=de operation=date), a table shows how well matched skills recover them, with a permutation
test. Groups of layers number their skills independently, so means over many groups are not
informative; trees and similarities compare tasks within each group.
"""

import argparse
from itertools import chain
from pathlib import Path

from mttl.checkpoints.inventory_files import inventory_folder
from mttl.commands.name_checks import check_routing
from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.io.errors import ConfigError
from mttl.io.files import write_table
from mttl.runtime.command import make_console, say


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    help = "run with another seed, whose skills are matched"
    parser.read.add_argument("--compare", metavar="RUN2", help=help)
    parser.add_adapted()
    add = parser.work.add_argument
    rows = dict(POSITIVE, metavar="ROWS", nargs="?", const=32)
    help = "compare the tasks' gradients on this number of training rows each (%(const)s)"
    add("--gradients", **rows, help=help)
    help = "count the experts that tokens choose on this split"
    add("--count", choices=("dev", "test"), help=help)
    help = "also statistics of every group of layers, and the subsets of skills in use"
    add("--all", action="store_true", help=help)
    parser.written.add_argument("--out", metavar="DIR", help="output folder (RUN/plots)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Print the tables and draw the figures."""
    if options.adapted and (options.compare or options.gradients):
        raise ConfigError("--adapted does not work with --compare and --gradients; remove them")
    if not options.count:  # otherwise the record is created
        check_routing(options.run)
    check_routing(*filter(None, [options.compare]))
    for folder in options.adapted:
        inventory_folder(folder)

    # These need matplotlib.
    from mttl.analysis.figures.canvas import save_figure
    from mttl.analysis.figures.catalogue import drawings, token_drawings
    from mttl.commands.routing_report import routing_tables as tables
    from mttl.commands.routing_report.read_routing import read_view, task_factors, token_view

    console = make_console()
    run = Path(options.run)
    if options.count:
        count_choices(run, options.count)
    view = read_view(run, options.adapted, options.backbone)
    other = read_view(Path(options.compare)).aligned_with(view) if options.compare else None
    folder = Path(options.out) if options.out else view.record.folder / "plots"

    console.print(tables.statistics_table(view, every=options.all))
    if options.all:
        console.print(tables.subset_table(view))
    if options.adapted:
        console.print(tables.likeness_table(view, len(options.adapted)))
    console.print(tables.comparison_table(view, other, task_factors(run, view.record.tasks)))
    figures = drawings(view, other)
    if options.gradients:
        from mttl.analysis.figures.heat_maps import similarity_matrix

        cosines, tasks = tables.gradient_cosines(run, options.gradients), view.record.tasks
        console.print(tables.gradient_table(cosines, tasks, view.categories))
        columns = ["task", *tasks]
        both = zip(tasks, cosines.tolist(), strict=True)
        rows = [dict(zip(columns, [task, *row], strict=True)) for task, row in both]
        write_table(folder / "gradients.csv", columns, rows)
        title = f"{view.name}: cosines of the gradients of tasks"
        drawn = similarity_matrix(cosines, view, title, quantity="cosine")
        figures = chain(figures, [("gradients", drawn)])
    if (tokens := view.tokens) is not None:
        console.print(tables.load_table(tokens))
        console.print(tables.expert_table(tokens))
        figures = chain(figures, token_drawings(tokens, view.name))
        if (run / "plots" / "routing.npz").is_file():  # otherwise the view already shows it
            shares = drawings(token_view(run, tokens))
            figures = chain(figures, ((f"tokens_{name}", figure) for name, figure in shares))
    n_figures = 0
    for name, figure in figures:
        save_figure(figure, folder / name)
        say(f"saved {name}", stderr=True)
        n_figures += 1
    say(f"{n_figures} figures are in {folder}, as PNG, SVG and PDF")


def count_choices(run: Path, split: str) -> None:
    """Count the experts that tokens choose on a split, and write the record of the run."""
    from mttl.commands.routing_report.read_routing import open_run
    from mttl.training.report import write_token_routing

    opened = open_run(run, "remove --count")
    module, data = opened.module, opened.data
    if not module.model.token_layers():
        raise ConfigError(f"'{run}' has no token router (section moe); remove --count")
    path = run / "plots" / "token_routing.npz"
    write_token_routing(path, module, data.evaluation_dataloader(split))

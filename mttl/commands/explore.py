"""Make an interactive page of one run, or of several side by side: one file, offline.

mttl explore runs/crossfit
mttl explore runs/seed13 runs/seed14 --html both.html
mttl explore runs/crossfit --serve

The page shows the scores of all tasks next to baselines, curves of training, the map and the tree
of tasks, and the skills; a task that is clicked shows its skills layer by layer, and answers.
Results of mttl ablate stand next to the routing, adapted tasks (mttl adapt --save) move through
the map, and skills of a further run are matched to those of the first.

With --serve the page is at http://127.0.0.1:8000/ until Ctrl-C, no file is written, and it can ask
the run: with the skills of a task, of a mixture of tasks, or with custom weights. It needs
`pip install fastapi uvicorn`.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mttl.commands.name_checks import check_different, check_routing
from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError
from mttl.runtime.command import make_console
from mttl.runtime.libraries import check_libraries

if TYPE_CHECKING:
    from mttl.analysis.routing_view import RoutingView


def _declare(parser: CommandParser) -> None:
    runs = parser.read
    runs.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs that have ended")
    parser.add_adapted()
    served = parser.group("served")
    help = "serve the page with the run behind it"
    served.add_argument("--serve", action="store_true", help=help)
    parser.add_address("served")
    out = parser.written
    out.add_argument("--html", metavar="FILE", help="where to write (RUN/plots/explore.html)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Write the page, or serve it."""
    problem = ""
    if options.serve and (len(options.runs) > 1 or options.html):
        problem = "--serve answers from one run, and writes no --html"
    elif options.adapted and not options.serve:
        problem = "--adapted is for a page that is served: add --serve, or leave it out"
    if problem:
        raise ConfigError(problem)
    check_different("RUN", options.runs)
    check_routing(*options.runs)
    if options.serve:
        check_libraries("fastapi", "uvicorn")
    from mttl.analysis.explore.explore_page import explore_page
    from mttl.io.files import write_text

    shown = [read(Path(run)) for run in options.runs]
    if options.serve:
        from mttl.serving.live_page import serve_page

        serve_page(
            *(options.runs[0], options.adapted, options.backbone),
            host=options.host,
            port=options.port,
            pairs=shown[0].pairs,
            make_page=lambda facts: explore_page(shown, facts),
        )
        return
    path = Path(options.html or Path(options.runs[0]) / "plots" / "explore.html")
    write_text(path, explore_page(shown))
    make_console().print(f"The page is {path}: open it in a browser", markup=False, soft_wrap=True)


def read(run: Path) -> "RoutingView":
    """Return what the page shows of a run."""
    from mttl.analysis.token_record import has_token_record, read_token_record
    from mttl.commands.routing_report.read_routing import read_view

    view = read_view(run)
    return replace(view, tokens=read_token_record(run)) if has_token_record(run) else view

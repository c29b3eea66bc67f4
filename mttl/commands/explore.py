"""Write an interactive page about one or several runs: one HTML file that works offline.

mttl explore runs/crossfit
mttl explore runs/seed13 runs/seed14 --html both.html
mttl explore runs/crossfit --serve

The page shows scores next to baselines, training curves, a map and a tree of the tasks, and the
skills. Click a task to see its skills by layer, and its answers. It includes the results of mttl
ablate, the films of mttl babyai film and the paths of adapted tasks (mttl adapt --save); skills of
further runs are matched to those of the first. With --serve the page is at http://127.0.0.1:8000/
until Ctrl-C, and no file is written. It then has a form to query the run with the skills of a task,
a mixture of tasks, or custom weights. This needs `pip install fastapi uvicorn`.
"""

import argparse
from pathlib import Path

from mttl.commands.name_checks import check_routing
from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError
from mttl.runtime.command import make_console
from mttl.runtime.libraries import check_libraries


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("runs", nargs="+", metavar="RUN", help="folders of finished runs")
    parser.add_adapted()
    served = parser.group("served")
    help = "serve the page, with a form to query the run"
    served.add_argument("--serve", action="store_true", help=help)
    parser.add_address("served")
    out = parser.written
    out.add_argument("--html", metavar="FILE", help="file to write (RUN/plots/explore.html)")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Write or serve the page."""
    problem = ""
    if options.serve and (len(options.runs) > 1 or options.html):
        problem = "--serve takes one RUN and does not write --html; remove one of the options"
    elif options.adapted and not options.serve:
        problem = "--adapted needs --serve; add --serve or remove --adapted"
    if problem:
        raise ConfigError(problem)
    check_routing(*options.runs)
    if options.serve:
        check_libraries("fastapi", "uvicorn")
    from mttl.analysis.explore.explore_page import explore_page
    from mttl.commands.routing_report.read_routing import read_view
    from mttl.io.files import write_text

    shown = [read_view(Path(run)) for run in options.runs]
    if options.serve:
        from mttl.serving.live_page import serve_page

        serve_page(options, shown[0].pairs, lambda facts: explore_page(shown, facts))
        return
    path = Path(options.html or Path(options.runs[0]) / "plots" / "explore.html")
    write_text(path, explore_page(shown))
    make_console().print(f"The page is {path}; open it in a browser", markup=False, soft_wrap=True)

r"""Answer over HTTP as OpenAI's completions and chat: every task of a run is a model.

mttl serve --from runs/crossfit
mttl serve --from runs/crossfit --adapted models/past models/third --port 8001
curl localhost:8000/v1/completions -H 'Content-Type: application/json' \
  -d '{"model": "verb_past", "prompt": "knit"}'

Requests of different tasks share batches. Ctrl-C or SIGTERM ends the server when it has answered
what it accepted. It needs `pip install fastapi uvicorn prometheus_client`.
"""

import argparse
import re

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.options import NATURAL, POSITIVE, CommandParser, command
from mttl.runtime.libraries import check_libraries


def _declare(parser: CommandParser) -> None:
    parser.add_source(required=False)
    parser.add_adapted()
    parser.add_address("who may ask")
    add = parser.group("who may ask").add_argument
    add("--api-key", metavar="KEY", help="that requests have to name ($MTTL_API_KEY, or none)")
    help = "pages that may ask from a browser, such as http://localhost:3000, or '*' (none)"
    add("--cors", type=origin, nargs="+", default=[], metavar="ORIGIN", help=help)
    add("--most-bytes", **POSITIVE, default=1 << 20, help="bytes of a request (1 MiB)")
    help = "seconds that a request may take (%(default)s)"
    add("--timeout", **dict(POSITIVE, metavar="S"), default=120, help=help)
    add = parser.group("how it answers").add_argument
    add("--batch-size", **POSITIVE, default=32, help="answers at a time (%(default)s)")
    help = "milliseconds that an idle server waits to form a batch (%(default)s)"
    add("--wait", **dict(NATURAL, metavar="MS"), default=5, help=help)
    help = "answers that wait; more are refused with status 429 (%(default)s)"
    add("--most-waiting", **POSITIVE, default=512, help=help)
    help = "largest max_tokens of a request; at least the run's length (%(default)s)"
    add("--most-tokens", **POSITIVE, default=1024, help=help)
    add("--truncate", action="store_true", help="cut inputs that are too long as in training")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Serve."""
    check_named(options.source, options.adapted)
    check_libraries("fastapi", "uvicorn", "prometheus_client")
    from mttl.serving.run_server import serve

    serve(options)


def origin(text: str) -> str:
    """Read an origin as browsers send it."""
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text):
        raise argparse.ArgumentTypeError(f"'{text}' must read http://HOST[:PORT], or *")
    return text.rstrip("/")

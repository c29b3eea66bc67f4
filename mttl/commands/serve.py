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
from mttl.commands.options import (
    add_adapted,
    add_address,
    add_source,
    make_parser,
    natural,
    positive,
)
from mttl.runtime.libraries import check_libraries


def main(arguments: list[str] | None = None) -> int:
    """Serve; return the exit status."""
    options = parse(arguments)
    check_named(options.source, options.adapted)
    check_libraries("fastapi", "uvicorn", "prometheus_client")
    from mttl.serving.run_server import serve

    serve(options)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("serve", __doc__)
    add_source(parser, required=False)
    add_adapted(parser)
    add_address(parser.group("who may ask"))
    add = parser.group("who may ask").add_argument
    add("--api-key", metavar="KEY", help="that requests have to name ($MTTL_API_KEY, or none)")
    add(
        "--cors",
        type=origin,
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="pages that may ask from a browser, such as http://localhost:3000, or '*' (none)",
    )
    add(
        "--most-bytes",
        type=positive,
        default=1 << 20,
        metavar="N",
        help="bytes of a request (1 MiB)",
    )
    add(
        "--timeout",
        type=positive,
        default=120,
        metavar="S",
        help="seconds that a request may take (%(default)s)",
    )
    add = parser.group("how it answers").add_argument
    add(
        "--batch-size",
        type=positive,
        default=32,
        metavar="N",
        help="answers at a time (%(default)s)",
    )
    add(
        "--wait",
        type=natural,
        default=5,
        metavar="MS",
        help="milliseconds that an idle server waits to form a batch (%(default)s)",
    )
    add(
        "--most-waiting",
        type=positive,
        default=512,
        metavar="N",
        help="answers that wait; more are refused with status 429 (%(default)s)",
    )
    add(
        "--most-tokens",
        type=positive,
        default=1024,
        metavar="N",
        help="largest max_tokens of a request; at least the run's length (%(default)s)",
    )
    add("--truncate", action="store_true", help="cut inputs that are too long as in training")
    return parser.parse_args(arguments)


def origin(text: str) -> str:
    """Read an origin as browsers send it."""
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text):
        raise argparse.ArgumentTypeError(f"'{text}' must read http://HOST[:PORT], or *")
    return text.rstrip("/")

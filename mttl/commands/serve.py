r"""Serve a run over HTTP with OpenAI's completions and chat API; every task is a model.

mttl serve --from runs/crossfit
mttl serve --from runs/crossfit --adapted models/past models/third --port 8001
curl localhost:8000/v1/completions -H 'Content-Type: application/json' \
  -d '{"model": "verb_past", "prompt": "knit"}'

Tasks with heads answer as the hub's inference API: POST /models/TASK with {"inputs": TEXT}.
Requests of different tasks share batches. After Ctrl-C or SIGTERM the server answers accepted
requests and exits. It needs `pip install fastapi uvicorn prometheus_client`.
"""

import argparse
import re

from mttl.checkpoints.inventory_files import check_named
from mttl.commands.options import NATURAL, POSITIVE, CommandParser, command
from mttl.runtime.libraries import check_libraries


def _declare(parser: CommandParser) -> None:
    parser.add_source(required=False)
    parser.add_adapted(more=", or of other runs")
    parser.add_address("access")
    add = parser.group("access").add_argument
    add("--api-key", metavar="KEY", help="key that requests must contain ($MTTL_API_KEY, or none)")
    help = "allowed origins of browser requests, such as http://localhost:3000, or '*' (none)"
    add("--cors", type=origin, nargs="+", default=[], metavar="ORIGIN", help=help)
    help = "let clients load adapted tasks below this folder at run time (vLLM's protocol)"
    add("--load-from", metavar="DIR", help=help)
    add("--most-bytes", **POSITIVE, default=1 << 20, help="maximum bytes of a request (1 MiB)")
    help = "maximum seconds per request (%(default)s)"
    add("--timeout", **dict(POSITIVE, metavar="S"), default=120, help=help)
    add = parser.group("answers").add_argument
    add("--batch-size", **POSITIVE, default=32, help="maximum answers per batch (%(default)s)")
    help = "milliseconds that an idle server waits to form a batch (%(default)s)"
    add("--wait", **dict(NATURAL, metavar="MS"), default=5, help=help)
    help = "maximum queued answers; further requests get status 429 (%(default)s)"
    add("--most-waiting", **POSITIVE, default=512, help=help)
    help = "limit of a request's max_tokens; at least the run's answer length (%(default)s)"
    add("--most-tokens", **POSITIVE, default=1024, help=help)
    help = "truncate long inputs as in training instead of rejecting them"
    add("--truncate", action="store_true", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Serve the run."""
    check_named(options.source, options.adapted)
    check_libraries("fastapi", "uvicorn", "prometheus_client")
    from mttl.serving.run_server import serve

    serve(options)


def origin(text: str) -> str:
    """Return an origin in the form that browsers send."""
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text):
        raise argparse.ArgumentTypeError(f"'{text}' must have the form http://HOST[:PORT], or be *")
    return text.rstrip("/")

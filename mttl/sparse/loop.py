"""The training loop of sparse fine-tuning, which can be stopped and resumed from a file."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mttl.checkpoints.run_callbacks import not_finite
from mttl.io.errors import ConfigError, StopRequested
from mttl.io.files import atomic_path
from mttl.io.torch_file import load_torch
from mttl.runtime.progress_bar import counting
from mttl.runtime.stop_signals import StopRequest, handling
from mttl.sparse.lottery_ticket import LotteryTicket


def run_steps(
    work: LotteryTicket, state: Path, settings: dict[str, Any], console: Console, *, save_every: int
) -> None:
    """Run the remaining steps with a progress bar; the state is saved regularly and at the end.

    Raises:
        StopRequested: After Ctrl-C or SIGTERM, with the step finished and the state saved.
        DivergedError: If the loss is not finite when the state is saved.
    """
    notice = "stopping after this step; once more to stop at once"
    request = StopRequest(notice, signal.default_int_handler)
    with handling(request), counting(console, work.doing, work.n_steps, work.n_done) as count:
        while work.n_done < work.n_steps:
            work.advance()
            saves = request.received or work.n_done % save_every == 0 or work.n_done == work.n_steps
            loss = None if work.last_loss is None or not saves else float(work.last_loss)
            if loss is not None and not math.isfinite(loss):
                advice = "The earlier state is kept; lower the learning rate"
                raise not_finite(f"the loss is {loss}", work.n_done, advice)
            count.name = work.doing if loss is None else f"{work.doing}, loss {loss:.3f}"
            count.set(work.n_done)
            if saves:
                save_state(state, work.state_dict(), settings)
            if request.received:
                raise StopRequested(request.received, state)


def save_state(path: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a state atomically."""
    with atomic_path(path) as temporary:
        torch.save({"settings": settings, "state": state}, temporary)


def load_state(path: Path, settings: dict[str, Any], *, resume: bool) -> dict[str, Any] | None:
    """Return the state to continue from, or None to start.

    A state without ``resume``, or of other settings, is a `ConfigError`.
    """
    if not os.path.lexists(path):
        return None
    if not resume:
        raise ConfigError(
            f"'{path}' is the state of a stopped run: continue it with --resume, or delete it"
        )
    content = load_torch(path, "Delete it to start again")
    both = [(key, content["settings"].get(key), value) for key, value in settings.items()]
    if lines := [f"\n{key}: {old!r}, now {new!r}" for key, old, new in both if old != new]:
        raise ConfigError(f"'{path}' belongs to a run with other settings:{''.join(lines)}")
    return content["state"]

"""A training loop that Ctrl-C or SIGTERM stops after a step, and that continues from a file."""

import os
import time
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import TextColumn

from mttl.checkpoints.checkpoint_file import not_finite
from mttl.io.errors import ConfigError, StopRequested
from mttl.io.files import atomic_path
from mttl.io.torch_file import load_torch
from mttl.runtime.progress_bar import SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_LOSSES, counting_bar
from mttl.runtime.stop_signals import StopRequest, handling

ADVICE = "The state of before is kept; lower the learning rate"


class Steps(Protocol):
    """Work in steps, whose state can be kept."""

    last_loss: torch.Tensor | None

    @property
    def n_steps(self) -> int:
        """Steps in all."""
        ...

    @property
    def n_done(self) -> int:
        """Steps that were taken."""
        ...

    @property
    def doing(self) -> str:
        """What the next step belongs to, for people."""
        ...

    def advance(self) -> None:
        """Take a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs."""
        ...


def run_steps(
    work: Steps, state: Path, settings: dict[str, Any], console: Console, *, save_every: int
) -> None:
    """Take all steps that are left, with a progress bar; the state is kept at the end, too.

    Raises:
        StopRequested: After Ctrl-C or SIGTERM; the step was finished and the state saved.
        DivergedError: If the loss is not finite where the state would be kept.
    """
    request = StopRequest("stopping after this step; once more to stop at once", _end_at_once)
    with (
        handling(request),
        counting_bar(console, TextColumn("{task.fields[loss]}")) as bars,
    ):
        bar = bars.add_task(work.doing, total=work.n_steps, completed=work.n_done, loss="")
        begun, first, shown = time.monotonic(), work.n_done, time.monotonic()
        while work.n_done < work.n_steps:
            work.advance()
            now = time.monotonic()
            pause = SECONDS_BETWEEN_LOSSES if console.is_terminal else SECONDS_BETWEEN_LINES
            if now - shown > pause and work.last_loss is not None:
                shown, loss = now, f"loss {float(work.last_loss):.3f}"
                bars.update(bar, loss=loss)
                if not console.is_terminal:
                    left = (now - begun) / (work.n_done - first) * (work.n_steps - work.n_done)
                    place = f"step {work.n_done} of {work.n_steps} ({work.doing})"
                    console.print(f"{place}: {loss}, about {left:.0f} s left")
            bars.update(bar, completed=work.n_done, description=work.doing)
            saves = request.received or work.n_done % save_every == 0 or work.n_done == work.n_steps
            if saves and work.last_loss is not None and not work.last_loss.isfinite():
                raise not_finite(f"the loss is {work.last_loss.item()}", work.n_done, ADVICE)
            if saves:
                save_state(state, work.state_dict(), settings)
            if request.received:
                raise StopRequested(request.received, state)


def save_state(path: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a state, whole or not at all; only this program reads it."""
    content = {"settings": settings, "state": state}
    with atomic_path(path) as temporary:
        torch.save(content, temporary)


def load_state(path: Path, settings: dict[str, Any], *, resume: bool) -> dict[str, Any] | None:
    """Return the state to continue from, or None to begin.

    Raises:
        ConfigError: If there is a state and it is not asked for, or it belongs to other settings.
        CheckpointError: If the file is damaged.
    """
    if not os.path.lexists(path):
        return None
    if not resume:
        raise ConfigError(
            f"'{path}' is the state of a run that was stopped: continue it with --resume, or "
            "delete the file to start again"
        )
    content = load_torch(path, "Delete it to start again")
    earlier, state = content["settings"], content["state"]
    differing = [key for key in settings if earlier.get(key) != settings[key]]
    if differing:
        lines = [f"{key}: {earlier.get(key)!r}, now {settings[key]!r}" for key in differing]
        listed = "\n".join(lines)
        raise ConfigError(f"'{path}' belongs to a run with other settings:\n{listed}")
    return state


def _end_at_once(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

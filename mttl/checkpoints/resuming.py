"""What goes wrong while a checkpoint is put into a trainer is the checkpoint's fault."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mttl.errors import CheckpointError, MttlError
from mttl.io.reading import reason

_PUT_BACK = ("restore", "resume_start", "load_state_dict", "on_load_checkpoint")


@contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Name the checkpoint where its content does not fit what it is put into.

    Raises:
        CheckpointError: If an error comes from putting it back; others pass.
    """
    try:
        yield
    except MttlError:
        raise
    except Exception as error:
        names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not any(name.lstrip("_").startswith(_PUT_BACK) for name in names):
            raise
        raise CheckpointError(
            f"'{path}' does not fit the run ({type(error).__name__}: {reason(error)}): it is "
            "damaged, or of another run. Copy it again, or start anew with -k run.name=NAME"
        ) from error

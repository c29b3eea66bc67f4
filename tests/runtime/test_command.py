"""Exit statuses and messages of commands, whatever the command does."""

import errno
import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytorch_lightning import Callback

from mttl.__main__ import ALL, listing
from mttl.io.errors import ConfigError
from mttl.runtime.command import (
    FAULT,
    HARMLESS,
    INTERRUPTED,
    SUCCESS,
    USER_MISTAKE,
    exit_with,
    only_warnings,
    run_command,
)
from mttl.training.callbacks import StopRequested


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Commands set up logging and warnings for their whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with warnings.catch_warnings():
        yield
    root.handlers, root.level = handlers, level


def raising(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


def test_a_logger_is_silenced_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the function ends in an error; later messages are shown."""
    log = logging.getLogger("mttl.data.prepare")
    caplog.set_level(logging.INFO)

    @only_warnings("mttl.data")
    def work() -> None:
        log.info("three small files")
        log.warning("damaged")
        raise ConfigError("a mistake")

    with pytest.raises(ConfigError):
        work()
    log.info("later")
    assert caplog.messages == ["damaged", "later"]


# Brackets are not markup, and lines are not broken at the width of a terminal.
LONG = f"a.yaml: section 'skills' has no '[bold]rnk[/]' {'long ' * 60}end\nthe next mistake"
FILE = "runs/[a]/config.yaml"
SAVED, ABSENT = Path(__file__), Path("/gone/last.ckpt")
SAYS = {SAVED: "the state was saved; continue with --resume", ABSENT: "no state had been saved yet"}


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ConfigError(LONG), USER_MISTAKE, f"error: {LONG}"),
        (StopRequested(signal.SIGINT, SAVED), INTERRUPTED, f"stopped by SIGINT; {SAYS[SAVED]}"),
        (StopRequested(signal.SIGTERM, ABSENT), FAULT, f"stopped by SIGTERM; {SAYS[ABSENT]}"),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (OSError(errno.ENOSPC, "no", FILE), USER_MISTAKE, f"error: cannot write '{FILE}': no"),
        (OSError(errno.EROFS, "no way"), USER_MISTAKE, "error: cannot write: no way"),
        (
            FileNotFoundError(errno.ENOENT, "No", str(ABSENT)),
            *(USER_MISTAKE, f"error: the folder of '{ABSENT}' was removed"),
        ),
        (
            FileNotFoundError(errno.ENOENT, "No", "./.a.csv.0f.part"),
            *(USER_MISTAKE, "error: the folder of './.a.csv.0f.part' was removed"),
        ),
        (
            NotADirectoryError(errno.ENOTDIR, "no folder", "a/b"),
            USER_MISTAKE,
            "error: cannot write 'a/b': no folder. A file exists where a folder is needed; "
            "choose another folder, or move the file",
        ),
        (
            RuntimeError("[gloo] Connection closed by peer"),
            FAULT,
            "error: another process of this command ended; see its message above, or in the log "
            "of its machine. Fix the cause, then continue with --resume",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_messages_on_standard_error(error, status, told, capsys) -> None:
    assert run_command(raising(error)) == status
    assert capsys.readouterr() == ("", f"{told}\n")


@pytest.mark.parametrize("fault", [ValueError("a fault"), FileNotFoundError(2, "gone", "x")])
def test_faults_of_the_program_are_one_line_and_a_file(fault, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_command(raising(fault)) == FAULT
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (path,) = tmp_path.glob("mttl-fault-*.txt")
    assert f"error: {type(fault).__name__}: " in error
    assert f"the traceback is in '{path}'" in error
    assert f"{type(fault).__name__}: " in path.read_text().splitlines()[-1]


def test_what_a_class_of_ones_own_raises_is_its_own(tmp_path, monkeypatch, capsys) -> None:
    class Watching(Callback):
        def setup(self) -> None:
            raise KeyError("lr")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_command(lambda: Watching().setup()) == USER_MISTAKE  # type: ignore[call-arg]
    error = capsys.readouterr().err
    assert "error: Watching failed: KeyError: 'lr' (" in error
    assert "test_command.py, line" in error
    assert "fault of the program" not in error
    assert 'raise KeyError("lr")' in next(tmp_path.glob("mttl-fault-*.txt")).read_text()


def test_the_traceback_is_printed_where_no_file_can_be_written(monkeypatch, capsys) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert run_command(raising(ValueError("a fault"))) == FAULT
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("status", [SUCCESS, FAULT])
def test_the_process_ends_with_the_status(status: int) -> None:
    with pytest.raises(SystemExit) as caught:
        exit_with(lambda: status)
    assert caught.value.code == status


def test_harmless_warnings_are_silent_and_others_are_not() -> None:
    def main() -> int:
        warnings.warn("Checkpoint directory runs/a exists and is not empty.", stacklevel=1)
        warnings.warn("the loss is not finite", stacklevel=1)
        return SUCCESS

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_command(main)
    assert [str(warning.message) for warning in caught] == ["the loss is not finite"]
    assert all(pattern.startswith(".*") for pattern in HARMLESS)


def test_messages_of_the_package_are_shown_and_chatter_of_libraries_is_not(capsys) -> None:
    def main() -> int:
        logging.getLogger("mttl.data.cache").info("Tokenising [a] 3 tasks")
        for library in ("httpx", "datasets", "lightning_fabric", "pytorch_lightning"):
            logging.getLogger(f"{library}.part").info("GPU available: False")
        logging.getLogger("datasets").warning("damaged")
        return SUCCESS

    run_command(main)
    output, error = capsys.readouterr()
    assert output == ""
    assert [line.strip() for line in error.splitlines()] == ["Tokenising [a] 3 tasks", "damaged"]


def test_every_command_is_listed_with_its_sentence() -> None:
    lines = listing(ALL).splitlines()
    assert [line[2:16].strip() for line in lines] == list(ALL)
    assert all(line[16].isupper() and '"' not in line for line in lines)
    assert "  serve         Serve a run over HTTP with OpenAI's" in listing(ALL)

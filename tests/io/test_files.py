import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from mttl.io.files import append_line, atomic_path, locked, new_folder, write_text


def test_writes_with_usual_permissions_and_makes_parents(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_text(path, "zwölf\n")
    assert path.read_text(encoding="utf-8") == "zwölf\n"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "b.txt"
    write_text(path, "old")

    with pytest.raises(OSError, match="full"), atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("half of the n")
        raise OSError(28, "full")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["b.txt"]


def test_a_lock_is_for_one_and_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path), pytest.raises(KeyError, match="mine"), locked(path, KeyError("mine")):
        pass
    with locked(path):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    code = (
        "import sys, time; from mttl.io.files import locked\n"
        "with locked(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(KeyError), locked(path, KeyError()):
        pass
    holder.kill()
    holder.communicate()
    with locked(path):
        pass


def test_where_a_file_system_has_no_locks_work_goes_on(tmp_path, monkeypatch) -> None:
    def acquire(lock: FileLock, blocking: bool) -> None:
        raise answers.pop()

    answers = [PermissionError(errno.EACCES, "of another user")]
    answers += [NotImplementedError(), OSError(errno.ENOLCK, "no locks")]
    monkeypatch.setattr(FileLock, "acquire", acquire)
    with locked(tmp_path / ".lock"), locked(tmp_path / ".lock"):
        pass
    with pytest.raises(PermissionError, match="another user"), locked(tmp_path / ".lock"):
        pass


def test_an_appended_line_takes_the_place_of_a_cut_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    append_line(path, "one")
    with path.open("a") as file:
        file.write("cut o")
    append_line(path, "zwölf")
    assert path.read_text("utf-8") == "one\nzwölf\n"


def test_a_new_folder_is_whole_or_absent(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "out") as temporary:
        (temporary / "file").touch()
        assert not (tmp_path / "a" / "out").exists()
    assert os.listdir(tmp_path / "a" / "out") == ["file"]
    with pytest.raises(FileExistsError, match="out"), new_folder(tmp_path / "a" / "out"):
        pass
    with pytest.raises(OSError, match="full"), new_folder(tmp_path / "a" / "other"):
        raise OSError(28, "full")
    assert os.listdir(tmp_path / "a") == ["out"]


def test_files_of_a_new_folder_are_flushed_once(tmp_path, monkeypatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_size))
    with new_folder(tmp_path / "new") as folder:
        write_text(folder / "a", "1")
        write_text(folder / "b" / "c", "22")
        assert flushed == []
    assert sorted(flushed) == [1, 2]


def test_a_folder_that_may_be_replaced_is(tmp_path) -> None:
    for content in ("first", "second"):
        with new_folder(tmp_path / "out", replace=True) as folder:
            (folder / content).touch()
        assert os.listdir(tmp_path / "out") == [content]
    with pytest.raises(OSError, match="full"), new_folder(tmp_path / "out", replace=True):
        raise OSError(28, "full")
    assert os.listdir(tmp_path / "out") == ["second"]
    assert os.listdir(tmp_path) == ["out"]

import os
import stat
from pathlib import Path

import pytest

from mttl.files import locked, new_folder, write_atomic, write_text


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

    def fill_the_disk(temporary):
        temporary.write_text("half of the n")
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        write_atomic(path, fill_the_disk)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["b.txt"]


def test_a_lock_is_for_one_and_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path), pytest.raises(BlockingIOError), locked(path):
        pass
    with locked(path):
        pass


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

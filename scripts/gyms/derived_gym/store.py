"""Write a gym to disk, or compare it with what is there."""

import os
import re
from pathlib import Path

_ROWS_FILE = re.compile(r"(?P<task>.+)_\d+_\d+_(train|dev|test)\.tsv")


class NotAGymError(Exception):
    """The folder to write to holds something else."""


def differences(files: dict[str, bytes], folder: Path) -> list[str]:
    """Return what on disk differs from ``files``: one line per file, with the reason."""
    found = []
    for name, content in sorted(files.items()):
        path = folder / name
        if not path.is_file():
            found.append(f"{path}: missing")
        elif path.read_bytes() != content:
            found.append(f"{path}: differs")
    return found + [f"{path}: does not belong to the gym" for path in _left_over(files, folder)]


def write(files: dict[str, bytes], folder: Path, title: str) -> None:
    """Write ``files`` into ``folder``, each one at once, and drop rows files of earlier builds.

    Args:
        files: Path inside the folder -> content.
        folder: Where to write; new, empty or a gym of that title.
        title: The first line of the gym's README.

    Raises:
        NotAGymError: If the folder holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise NotAGymError(f"'{folder}' is not a folder; name another one with --out.")
    if folder.is_dir() and any(folder.iterdir()) and not _is_gym(folder, title):
        raise NotAGymError(
            f"'{folder}' is not empty and does not hold this gym (a README.md that starts with "
            f"'{title}'); name another folder with --out."
        )
    # The README comes first: it marks the folder as ours if the rest is interrupted.
    for name in sorted(files, key=lambda name: (name != "README.md", name)):
        write_file(folder / name, files[name])
    for path in _left_over(files, folder):
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def write_file(path: Path, content: bytes) -> None:
    """Write one file so that readers see the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _is_gym(folder: Path, title: str) -> bool:
    path = folder / "README.md"
    return path.is_file() and path.read_bytes().startswith(title.encode())


def _left_over(files: dict[str, bytes], folder: Path) -> list[Path]:
    """Return the rows files in the folder that the gym does not have."""
    paths = sorted(folder.glob("*/*.tsv"))
    return [
        path
        for path in paths
        if (match := _ROWS_FILE.fullmatch(path.name))
        and match["task"] == path.parent.name
        and f"{path.parent.name}/{path.name}" not in files
    ]

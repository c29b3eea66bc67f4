"""What happens to files by accident: flipped bits, missing ends, wrong places."""

import os
import random
from pathlib import Path

LONG_LINE = 50_000_000


def damage_bytes(path: Path, rng: random.Random, marker: Path) -> str:
    """Damage a file of any kind, and return what was done.

    Args:
        path: The file, which is overwritten.
        rng: Decides.
        marker: Not used: nothing here could run.
    """
    data = bytearray(path.read_bytes())
    size = len(data)
    kinds = (
        *("flip", "flip", "flip", "flip", "flips", "cut", "cut", "zeros", "noise", "double"),
        *("insert", "swap", "empty", "append", "other", "utf16"),
    )
    kind = rng.choice(kinds)
    start = rng.randrange(size) if size else 0
    stop = min(size, start + rng.choice((1, 4, 16, 100, 1000)))
    if kind in ("flip", "flips") and size:
        for _ in range(1 if kind == "flip" else rng.randint(2, 8)):
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[start:]
    elif kind == "zeros":
        data[start:stop] = bytes(stop - start)
    elif kind == "noise":
        data[start:stop] = rng.randbytes(stop - start)
    elif kind == "double":
        data[start:start] = data[start:stop]
    elif kind == "insert":
        data[start:start] = rng.randbytes(rng.choice((1, 7, 64)))
    elif kind == "swap":
        block = data[start:stop]
        del data[start:stop]
        data[len(data) // 2 : len(data) // 2] = block
    elif kind == "append":
        data += rng.choice((b"\0", b"\n\n", rng.randbytes(100)))
    elif kind == "other":
        data = bytearray(
            rng.choice((b"\x1f\x8b\x08\0", b"PK\x03\x04", b"\x89PNG\r\n", b"\x80\x04.", b"<html>"))
        )
    elif kind == "utf16":
        data = bytearray(bytes(data).decode("latin-1").encode("utf-16"))
    else:
        data = bytearray()
    path.write_bytes(data)
    return kind


def misplace(path: Path, rng: random.Random, marker: Path) -> str:
    """Put something else where a file should be."""
    kind = rng.choice(("missing", "folder", "pipe", "loop", "device", "dangling", "socket"))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/dev/tty")))
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "socket":
        path.symlink_to("/proc/self/mem")
    return kind


def damage_text(path: Path, rng: random.Random, marker: Path) -> str:
    """Put strange characters, or far too many, into a text file."""
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    strange = (
        *(b"\0", b"\x1b[2J", b"\xff", b"\xed\xa0\x80", b"\r", b"\xe2\x80\xa8", b"\x0c", b"\x85"),
        *(b"\xef\xbb\xbf", b"\xc2\x85", b"\t", b'"', b"'", b"\\", b"\n", b",", b"{", b"[", b"#"),
    )
    kind = rng.choice(("strange", "strange", "strange", "mark", "crlf", "cr", "long", "line twice"))
    if kind == "strange":
        data = data[:start] + rng.choice(strange) + data[start:]
    elif kind == "mark":
        data = b"\xef\xbb\xbf" + data
    elif kind == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif kind == "cr":
        data = data.replace(b"\n", b"\r")
    elif kind == "line twice":
        lines = data.splitlines(keepends=True)
        at = rng.randrange(len(lines)) if lines else 0
        data = b"".join([*lines[: at + 1], *lines[at:]])
    else:  # costly, so most of them are only long
        length = LONG_LINE if rng.random() < 0.1 else 300_000
        data = (
            data[:start]
            + rng.choice((b"a", b"9", b" ", b"[", b"\t", b"- ")) * length
            + data[start:]
        )
    path.write_bytes(data)
    return kind

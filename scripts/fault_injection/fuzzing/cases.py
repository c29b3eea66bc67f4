"""One case: a copy of sound files, one of them changed, and what its reader made of it."""

import faulthandler
import random
import resource
import shutil
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from fuzzing import areas
from fuzzing.digest import digest_of
from fuzzing.mutate import mutate
from fuzzing.samples import copy_sample
from mttl.io.errors import MttlError

# System calls that a reader may make in addition to those at its start.
MEMORY = 1 << 30
REFUSED, EQUAL, OTHER = "refused", "equal", "taken"
SILENT, TRACEBACK, STATUS = "silent", "traceback", "status"
MEMORY_OUT, RAN, MESSAGE, HANG = "memory", "code run", "message", "hang"
GOOD = (REFUSED, EQUAL, OTHER)
ROUGH = (TRACEBACK, STATUS, MESSAGE, HANG, MEMORY_OUT)  # nothing is wrong, but nothing is explained
BAD = (SILENT, RAN)


@dataclass(frozen=True)
class Ending:
    """How a case ended.

    Attributes:
        area: Which kind of file.
        number: Of the case.
        change: What was done to which file.
        outcome: One of `GOOD`, `ROUGH` or `BAD`.
        detail: The message, or where it failed.
        seconds: How long it took.
    """

    area: str
    number: int
    change: str
    outcome: str
    detail: str
    seconds: float


class Cases:
    """Runs cases in this process.

    Args:
        root: The folder with ``samples``.
        seed: Of all cases.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed
        self._sound: dict[str, str] = {}
        areas.MODELS = root / "samples" / "models"
        _bound_memory()
        faulthandler.enable()

    def run(self, name: str, number: int) -> Ending:
        """Run one case; equal arguments give equal cases.

        Args:
            name: Of the area.
            number: Of the case.
        """
        area = areas.AREAS[name]
        if name not in self._sound:
            self._sound[name] = self._read_sound(area)
        rng = random.Random(f"{self.seed}/{name}/{number}")
        scratch = Path(tempfile.mkdtemp(prefix="case-", dir=self.root))
        marker = scratch / "ran"
        try:
            folder = self._copied(area, scratch)
            files = sorted(path for pattern in area.files for path in folder.glob(pattern))
            files = [path for path in files if path.is_file() and path.name[0] != "."]
            path = rng.choice(files)
            what, by_accident = mutate(path, rng, marker)
            change = f"{path.relative_to(folder)}: {what}"
            promised = area.checked == "all" or (area.checked == "bytes" and by_accident)
            begun = time.monotonic()
            before = _peak()
            outcome, detail = self._outcome(area, folder, self._sound[name], scratch)
            if outcome == OTHER and promised:
                outcome = SILENT
            seconds = time.monotonic() - begun
            if _peak() - before > MEMORY:
                outcome, detail = MEMORY_OUT, f"{(_peak() - before) >> 20} MiB more"
            if marker.exists():
                outcome = RAN
            return Ending(name, number, change, outcome, detail, seconds)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _copied(self, area: areas.Area, scratch: Path) -> Path:
        samples = (self.root / "samples").resolve()
        folder = scratch / Path(area.sample).name
        copy_sample(samples / area.sample, folder)
        config = folder / "config.yaml"
        if config.is_file():  # a run says where it is
            text = config.read_text("utf-8").replace(f"dir: {samples}\n", f"dir: {scratch}\n")
            config.write_text(text, "utf-8")
            (scratch / "settings.yaml").write_text(text, "utf-8")
        return folder

    def _read_sound(self, area: areas.Area) -> str:
        scratch = Path(tempfile.mkdtemp(prefix="sound-", dir=self.root))
        try:
            return digest_of(area.read(self._copied(area, scratch)), scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _outcome(
        self, area: areas.Area, folder: Path, sound: str, scratch: Path
    ) -> tuple[str, str]:
        try:
            found = digest_of(area.read(folder), scratch)
        except (MttlError, areas.Refused) as error:
            problem = about_message(str(error), isinstance(error, areas.Refused))
            return (MESSAGE if problem else REFUSED), problem or str(error)
        except areas.WrongStatus as error:
            return STATUS, str(error)
        except MemoryError:
            return MEMORY_OUT, traceback.format_exc()[-1500:]
        except (Exception, SystemExit):
            return TRACEBACK, traceback.format_exc()[-3000:]
        if found == sound:
            return EQUAL, ""
        return OTHER, ""


def about_message(text: str, printed: bool) -> str | None:
    """Return what is wrong with a message."""
    if not text.strip():
        return "the message is empty"
    if len(text) > 5000:
        return f"the message has {len(text)} characters: {text[:200]!r}"
    strange = [c for c in text if not c.isprintable() and c != "\n"]
    if strange:
        return f"the message holds {strange[0]!r}: {text[:300]!r}"
    return "a traceback is printed" if printed and "Traceback" in text else None


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _bound_memory() -> None:
    status = Path("/proc/self/status")
    if not status.is_file():  # not Linux
        return
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData"))
    data = int(line.split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (data + 2 * MEMORY, data + 2 * MEMORY))

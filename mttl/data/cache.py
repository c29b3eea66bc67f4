"""A cache of data sets on disk; an entry is written whole or not at all.

A data set is built in a folder of its own and moved into place by one rename, so that processes
that build at once do not meet: the first one there wins and the others use its work. A file of
checksums tells a damaged cache, which is built again with a warning.
"""

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
from datasets import Dataset

from mttl.files import new_folder

_log = logging.getLogger(__name__)
_CHECKSUMS = "checksums.json"


def cached(build: Callable[[], Dataset], key: str, cache_dir: str | Path) -> Dataset:
    """Return the data set kept under ``key``, building and keeping it if it is not there.

    If the cache cannot be written (no space, no permission), the data set is returned all the
    same, with a warning.

    Args:
        build: Makes the data set.
        key: Names it; must change with everything that ``build`` depends on.
        cache_dir: The folder of all caches; made if need be.
    """
    place = Path(cache_dir) / key
    if place.exists():
        dataset = _load(place)
        if dataset is not None:
            return dataset
        _log.warning("the cache '%s' is damaged; it is built again.", place)
        _remove(place)
    dataset = build()
    try:
        _keep(dataset, place)
    except OSError as error:
        _log.warning("the cache '%s' cannot be written (%s); going on without.", place, error)
        return dataset
    kept = _load(place)
    return dataset if kept is None else kept


def _load(place: Path) -> Dataset | None:
    """Return the data set at ``place``, or None if it is not there whole."""
    try:
        checksums = json.loads((place / _CHECKSUMS).read_text(encoding="utf-8"))
        if checksums != _checksums(place):
            return None
        with _no_progress_bars():
            return Dataset.load_from_disk(str(place))
    except Exception as error:  # whatever a damaged file makes Arrow or json raise
        _log.debug("cannot load '%s': %s", place, error)
        return None


def _keep(dataset: Dataset, place: Path) -> None:
    try:
        with new_folder(place) as building:
            with _no_progress_bars():
                dataset.save_to_disk(str(building))
            text = json.dumps(_checksums(building), indent=1)
            (building / _CHECKSUMS).write_text(text, encoding="utf-8")
    except OSError:
        # Where another process was first, its data set is this one's equal.
        if not place.exists():
            raise


def _remove(place: Path) -> None:
    """Move a folder out of the way first: another process may be building in its place."""
    aside = place.with_name(
        f".{place.name}.{uuid.uuid4().hex[:8]}.part"
    )  # as `new_folder` names it
    try:
        place.rename(aside)
    except OSError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != _CHECKSUMS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()

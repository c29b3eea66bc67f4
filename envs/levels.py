"""Every level of BabyAI that minigrid registers: its id, what it asks for, and its time limit.

The competencies of the published levels are those of the paper's table. Minigrid's other levels
are smaller, larger or special cases of them; theirs are derived from what the level contains.

References:
    Chevalier-Boisvert et al., *BabyAI: A Platform to Study the Sample Efficiency of Grounded
    Language Learning*, ICLR 2019, arXiv:1810.08272, section 3.3 and table 1.
"""

import difflib
from dataclasses import dataclass

from envs.errors import LevelError

COMPETENCIES = (
    *("ROOM", "DISTR-BOX", "DISTR", "MAZE", "UNBLOCK", "UNLOCK", "IMP-UNLOCK"),
    *("GOTO", "OPEN", "PICKUP", "PUT", "LOC", "SEQ"),
)


@dataclass(frozen=True)
class Level:
    """One level.

    Attributes:
        name: Short name, such as "GoToLocal".
        id: Name in gymnasium's registry, such as "BabyAI-GoToLocal-v0".
        competencies: What an agent must master, in the order of `COMPETENCIES`.
        steps: Actions until an episode is cut off: of the whole episode where ``fixed``, else per
            navigation that the mission needs (one, two to put something somewhere; missions of
            several sentences add theirs up).
        fixed: The limit does not depend on the mission.
    """

    name: str
    id: str
    competencies: tuple[str, ...]
    steps: int
    fixed: bool = False


# The eight levels of Ponti et al., "Combining Modular Skills in Multitask Learning", 2022,
# arXiv:2202.13914, section 3.1.
PAPER_LEVELS = (
    *("GoToObj", "GoToRedBallGrey", "GoToRedBall", "GoToLocal"),
    *("PutNextLocal", "PickupLoc", "GoToObjMaze", "GoTo"),
)

_DISTRACTED = "ROOM DISTR-BOX DISTR"
_MAZE = f"{_DISTRACTED} MAZE"
_ALL_ACTIONS = "GOTO OPEN PICKUP PUT"

# Competencies, then name and steps of every level that has them; "!" marks a fixed limit.
_TABLE = {
    "ROOM": "GoToObj 64, GoToObjS4 16, GoToObjS6 36, GoToRedBallNoDists 64",
    "ROOM DISTR-BOX": "GoToRedBallGrey 64",
    _DISTRACTED: "GoToRedBall 64, GoToRedBlueBall 64",
    f"{_DISTRACTED} GOTO": (
        "GoToLocal 64, GoToLocalS5N2 25, GoToLocalS6N2 36, GoToLocalS6N3 36, GoToLocalS6N4 36, "
        "GoToLocalS7N4 49, GoToLocalS7N5 49, GoToLocalS8N2 64, GoToLocalS8N3 64, "
        "GoToLocalS8N4 64, GoToLocalS8N5 64, GoToLocalS8N6 64, GoToLocalS8N7 64, GoToObjDoor 576"
    ),
    "ROOM GOTO": "GoToDoor 441",
    "ROOM MAZE": (
        "GoToObjMaze 576, GoToObjMazeOpen 576, GoToObjMazeS4R2 64, GoToObjMazeS4 144, "
        "GoToObjMazeS5 225, GoToObjMazeS6 324, GoToObjMazeS7 441"
    ),
    f"{_MAZE} GOTO": "GoTo 576, GoToOpen 576",
    f"{_MAZE} IMP-UNLOCK GOTO": "GoToImpUnlock 576",
    f"{_MAZE} GOTO SEQ": "GoToSeq 576, GoToSeqS5R2 100",
    "ROOM OPEN": "OpenRedDoor 50, OpenDoorColor 576",
    "ROOM OPEN LOC": "OpenDoor 576, OpenDoorDebug 576, OpenDoorLoc 576",
    "ROOM OPEN SEQ": (
        "OpenTwoDoors 720!, OpenRedBlueDoors 720!, OpenRedBlueDoorsDebug 720!, "
        "OpenDoorsOrderN2 720!, OpenDoorsOrderN4 720!, OpenDoorsOrderN2Debug 720!, "
        "OpenDoorsOrderN4Debug 720!"
    ),
    f"{_MAZE} OPEN": "Open 576",
    "ROOM PICKUP": "OneRoomS8 64, OneRoomS12 144, OneRoomS16 256, OneRoomS20 400",
    f"{_DISTRACTED} PICKUP": "PickupDist 49, PickupDistDebug 49",
    f"{_DISTRACTED} PICKUP LOC": "PickupLoc 64",
    "ROOM MAZE PICKUP": "PickupAbove 288!, FindObjS5 500!, FindObjS6 720!, FindObjS7 980!",
    f"{_MAZE} PICKUP": "Pickup 576",
    f"{_MAZE} UNBLOCK PICKUP": "UnblockPickup 576",
    f"{_DISTRACTED} GOTO OPEN PICKUP": "ActionObjDoor 441",
    "ROOM PUT": "PutNextS4N1 128!, PutNextS5N1 200!",
    f"{_DISTRACTED} PUT": (
        "PutNextLocal 64, PutNextLocalS5N3 25, PutNextLocalS6N4 36, PutNextS5N2 200!, "
        "PutNextS6N3 288!, PutNextS7N4 392!, PutNextS5N2Carrying 200!, PutNextS6N3Carrying 288!, "
        "PutNextS7N4Carrying 392!"
    ),
    f"{_DISTRACTED} PUT SEQ": "MoveTwoAcrossS5N2 400!, MoveTwoAcrossS8N9 1024!",
    "ROOM UNLOCK OPEN": "UnlockLocal 576, KeyInBox 576",
    f"{_DISTRACTED} UNLOCK OPEN": "UnlockLocalDist 576",
    f"{_MAZE} UNLOCK OPEN": "Unlock 576",
    "ROOM MAZE IMP-UNLOCK PICKUP": (
        "UnlockPickup 72, UnlockToUnlock 1080!, KeyCorridor 1080!, KeyCorridorS3R1 270!, "
        "KeyCorridorS3R2 270!, KeyCorridorS3R3 270!, KeyCorridorS4R3 480!, KeyCorridorS5R3 750!, "
        "KeyCorridorS6R3 1080!"
    ),
    "ROOM MAZE UNBLOCK IMP-UNLOCK PICKUP": "BlockedUnlockPickup 576!",
    f"{_MAZE} IMP-UNLOCK PICKUP": "UnlockPickupDist 72",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS}": "Synth 576, SynthS5R2 150",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS} LOC": "SynthLoc 576",
    f"{_MAZE} UNBLOCK UNLOCK {_ALL_ACTIONS} LOC SEQ": "SynthSeq 576",
    f"{_MAZE} UNBLOCK {_ALL_ACTIONS} LOC SEQ": "BossLevelNoUnlock 576",
    " ".join(COMPETENCIES): "BossLevel 576, MiniBossLevel 100",
}


def _read_table() -> dict[str, Level]:
    levels = {}
    for competencies, entries in _TABLE.items():
        for entry in entries.split(", "):
            name, steps = entry.split()
            version = "v1" if name == "GoToObjS6" else "v0"
            levels[name] = Level(
                name,
                f"BabyAI-{name}-{version}",
                tuple(competencies.split()),
                int(steps.removesuffix("!")),
                fixed=steps.endswith("!"),
            )
    return levels


LEVELS = _read_table()


def find_level(name: str) -> Level:
    """Return the level of a short name.

    Raises:
        LevelError: If there is none; the message names the nearest.
    """
    if name in LEVELS:
        return LEVELS[name]
    folded = {known.lower(): known for known in LEVELS}
    bare = name.removeprefix("BabyAI-").removesuffix("-v0").lower()
    close = difflib.get_close_matches(bare, folded, n=3, cutoff=0.4)
    nearest = " or ".join(f"'{folded[match]}'" for match in close)
    hint = f"did you mean {nearest}?" if close else "see envs.levels.LEVELS."
    raise LevelError(f"unknown level '{name}'; {hint}")

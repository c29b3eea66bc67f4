"""What can go wrong: a level that does not exist, and a simulation that breaks."""


class LevelError(ValueError):
    """A level that is unknown or cannot be played; the message names what can."""


class SimulationError(RuntimeError):
    """An environment raised or its process died; the message names level, slot, seed and cause."""

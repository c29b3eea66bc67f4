"""Errors of the environments: an unknown level, and a simulation that fails."""


class LevelError(ValueError):
    """A level that is unknown or cannot be played; the message names what can."""


class SimulationError(RuntimeError):
    """An environment raised or its process died; the message names level, slot, seed and cause."""

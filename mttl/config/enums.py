"""Allowed values of methods' options, available without importing PyTorch."""

# Entries compete for a sparse support within these scopes, in these units.
SCOPES = ("global", "tensor")
STRUCTURES = ("entries", "rows", "blocks")
# Gradients that Fisher information squares.
GRADIENTS = ("example", "batch")


def check_density(density: float) -> None:
    """Raise a `ValueError` if a density is outside (0, 1]."""
    if not 0 < density <= 1:
        raise ValueError(f"density ({density}) must lie in (0, 1]")

"""What methods let one choose, for those who check or list it before PyTorch is there."""

# Among which entries those of a sparse support compete, and what is chosen as a whole.
SCOPES = ("global", "tensor")
STRUCTURES = ("entries", "rows", "blocks")
# Whose gradients Fisher information squares.
GRADIENTS = ("example", "batch")


def check_density(density: float) -> None:
    """Refuse a fraction of entries outside (0, 1]."""
    if not 0 < density <= 1:
        raise ValueError(f"density ({density}) must lie in (0, 1]")

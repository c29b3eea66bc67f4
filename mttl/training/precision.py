"""Precision plugins for training loops without Lightning's trainer."""

from lightning_fabric.plugins import MixedPrecision, Precision

PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def precision_plugin(precision: str, device: str) -> Precision:
    """Return the plugin of one of `PRECISIONS`, for scaling losses and optimizer steps."""
    if precision == "32-true":
        return Precision()
    return MixedPrecision(precision, device)  # type: ignore[arg-type]

"""The precision plugin of training loops that run without Lightning's trainer."""

from lightning_fabric.plugins import MixedPrecision, Precision

PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def precision_plugin(precision: str, device: str) -> Precision:
    """Return the plugin that runs forward passes, scales losses and takes optimizer steps.

    Args:
        precision: ``"32-true"``; or ``"bf16-mixed"`` or ``"16-mixed"``, which compute products in
            half precision and keep the weights in single precision.
        device: Type of the device, such as ``"cpu"``.

    Raises:
        ValueError: If it is another precision: weights in half precision are too coarse for the
            small steps of adaptation.
    """
    if precision == "32-true":
        return Precision()
    if precision == "16-mixed" or precision == "bf16-mixed":
        return MixedPrecision(precision, device)
    raise ValueError(f"precision ('{precision}') must be one of {', '.join(PRECISIONS)}")

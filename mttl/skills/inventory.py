"""The interface of all inventories: K skills of one layer, stacked."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

Merged = tuple[Tensor, ...]


class Inventory(nn.Module, ABC):
    """K skills of one linear layer, stacked in one tensor per parameter.

    Work is split in two, so that what depends on the tasks alone is done once per batch, and once
    per generated text: `merge` turns skills and weights into what each example needs, `combine`
    applies that to the layer's input and output.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K.
        n_heads: Heads H: blocks of features that are mixed apart.

    Raises:
        ValueError: If a size is not positive.
    """

    role = "skills"

    def __init__(self, in_features: int, out_features: int, n_skills: int, n_heads: int) -> None:
        super().__init__()
        if n_skills < 1:
            raise ValueError(f"n_skills ({n_skills}) must be at least 1")
        if n_heads < 1:
            raise ValueError(f"n_heads ({n_heads}) must be at least 1")
        self.in_features = in_features
        self.out_features = out_features
        self.n_skills = n_skills
        self.n_heads = n_heads

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw the skills anew, so that they change nothing yet."""

    @abstractmethod
    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Prepare the skills of each example from its mixing weights."""

    @abstractmethod
    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Apply merged skills to the input ``x`` and the output ``y`` of the base layer."""

    def combine_linear(
        self, x: Float[Tensor, "B L I"], base: nn.Linear, merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Compute the base layer and apply merged skills; a kind may fuse the two."""
        return self.combine(x, base(x), merged)

    def forward(
        self,
        x: Float[Tensor, "B L I"],
        y: Float[Tensor, "B L O"],
        weights: Float[Tensor, "B H K"],
    ) -> Float[Tensor, "B L O"]:
        """Return the output of the layer with its skills.

        Args:
            x: Input of the base layer.
            y: Output of the base layer.
            weights: Mixing weights of each example.
        """
        return self.combine(x, y, self.merge(weights))

    def delta(self, weights: Float[Tensor, "H K"]) -> Float[Tensor, "O I"]:
        """Return the change of the base weight that the mixture amounts to.

        Args:
            weights: Mixing weights of one task.

        Raises:
            NotImplementedError: If the kind is not a change added to a weight.
        """
        raise NotImplementedError(f"{type(self).__name__} does not add to the base weight")

    def fold(
        self,
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, "O"] | None,
        weights: Float[Tensor, "H K"],
    ) -> tuple[Float[Tensor, "O I"], Float[Tensor, "O"] | None]:
        """Return weight and bias of a plain linear layer that does what layer and mixture do.

        Args:
            weight: The base layer's weight.
            bias: Its bias, or none.
            weights: Mixing weights of one task.

        Raises:
            NotImplementedError: If no plain layer does.
        """
        return weight + self.delta(weights), bias

    def penalties(self) -> dict[str, Tensor]:
        """Return what the skills owe to the objective, whatever the input; nothing by default."""
        return {}

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"n_skills={self.n_skills}, n_heads={self.n_heads}"
        )


def require_divisible(n_heads: int, **features: int) -> None:
    """Refuse a number of heads that does not divide a number of features.

    Args:
        n_heads: Heads H.
        **features: Names and sizes of the axes that are cut into H blocks.

    Raises:
        ValueError: If one of them is not a multiple of ``n_heads``.
    """
    for name, size in features.items():
        if size % n_heads:
            raise ValueError(f"n_heads ({n_heads}) must divide {name} ({size})")


def active_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype a product with ``tensor`` runs in: autocast's, or the tensor's own."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype

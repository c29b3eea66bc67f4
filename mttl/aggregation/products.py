"""Matrix products of a few rows with a large matrix, as fast as a CPU can do them."""

import torch
from jaxtyping import Float
from torch import Tensor

# Up to here PyTorch's own product is the faster, with the weight on the left.
FEW_ROWS = 4
# Up to here an outer product per row is the fastest way to write a weight's gradient.
SINGLE_ROWS = 2
# From here oneDNN pays: it prepares a kernel for every new number of rows, in some 0.4 ms.
MANY_PRODUCTS = 2**23


def times_transpose(x: Float[Tensor, "M I"], weight: Float[Tensor, "O I"]) -> Float[Tensor, "M O"]:
    """Return ``x Wᵀ``.

    PyTorch's float32 products on a CPU are those of MKL, which on processors by other makers than
    its own leaves half of the speed unused; oneDNN, which PyTorch has on board too, does not. It
    is taken where it is there and switched on (`torch.backends.mkldnn`).
    """
    if len(x) <= FEW_ROWS:  # reading the weight along its rows
        return (weight @ x.t()).t() if weight.is_contiguous() else x @ weight.t()
    if weight.numel() * len(x) >= MANY_PRODUCTS and _has_onednn(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return x @ weight.t()


def write_outer(
    out: Float[Tensor, "O I"], left: Float[Tensor, "M O"], right: Float[Tensor, "M I"]
) -> None:
    """Write ``leftᵀ right``, the gradient of a weight, into ``out``."""
    if 0 < len(left) <= SINGLE_ROWS:
        for i in range(len(left)):
            out.addr_(left[i], right[i], beta=int(i > 0))
    elif out.numel() * len(left) >= MANY_PRODUCTS and _has_onednn(left):
        out.copy_(torch.ops.mkldnn._linear_pointwise(left.t(), right.t(), None, "none", [], ""))
    else:
        # Adding to zeros is faster than overwriting: MKL's product has a slow path for the latter.
        out.zero_().addmm_(left.t(), right)


def active_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype a product with ``tensor`` runs in: autocast's, or the tensor's own."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def _has_onednn(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    enabled = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return enabled and hasattr(torch.ops.mkldnn, "_linear_pointwise")

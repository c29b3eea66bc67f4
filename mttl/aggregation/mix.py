"""Three ways to combine low-rank skills by the mixing weights of each example.

With ``A_k`` (I × r) and ``B_k`` (O × r) the factors of skill k, and ``w_k`` the weights of one
example:

| name | change of the layer's output |
|---|---|
| `mix_factors` | ``x (Σ w_k A_k) (Σ w_k B_k)ᵀ``, as in the code of Polytropon and MHR |
| `mix_deltas` | ``x (Σ w_k A_k B_kᵀ)``, as in the equation of the paper |
| `mix_outputs` | ``Σ w_k (x A_k B_kᵀ)``, equal to `mix_deltas`, computed on activations |

All three are equal if one skill has weight 1 and the others 0. With H heads, `mix_factors` has
separate weights for H blocks of input features of ``A`` and of output features of ``B``; the others
for blocks of output features.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def mix_blocks(
    stack: Float[Tensor, "K F *rest"], weights: Float[Tensor, "B H K"]
) -> Float[Tensor, "B F *rest"]:
    """Return ``Σ_k weights[b, h, k] · stack[k, f]`` for example b and features f of block h."""
    n_examples, n_heads, n_skills = weights.shape
    shape = (n_examples, *stack.shape[1:])
    if n_heads == 1:
        # The common case is a single matrix product.
        return (weights[:, 0] @ stack.flatten(1)).view(shape)
    blocks = stack.reshape(n_skills, n_heads, -1).transpose(0, 1)  # (H, K, F / H · rest)
    mixed = torch.bmm(weights.transpose(0, 1), blocks)  # (H, B, F / H · rest)
    return mixed.transpose(0, 1).reshape(shape)


def mix_factors(
    down: Float[Tensor, "K I r"], up: Float[Tensor, "K O r"], weights: Float[Tensor, "B H K"]
) -> tuple[Float[Tensor, "B I r"], Float[Tensor, "B O r"]]:
    """Return the averages of both factors, whose product is the example's low-rank change."""
    return mix_blocks(down, weights), mix_blocks(up, weights)


def mix_deltas(
    down: Float[Tensor, "K I r"], up: Float[Tensor, "K O r"], weights: Float[Tensor, "B H K"]
) -> Float[Tensor, "B O I"]:
    """Return the average products of the factors: each example's change of the weight."""
    return mix_blocks(torch.bmm(up, down.transpose(1, 2)), weights)


def mix_outputs(
    x: Float[Tensor, "B L I"],
    down: Float[Tensor, "K I r"],
    up: Float[Tensor, "K O r"],
    weights: Float[Tensor, "B H K"],
) -> Float[Tensor, "B L O"]:
    """Return the average of the skills' outputs, without a weight matrix per example.

    The weights multiply the r-dimensional activations between the factors.
    """
    n_skills, _, rank = down.shape
    hidden = x @ down.transpose(0, 1).reshape(x.shape[-1], n_skills * rank)  # (B, L, K r)
    # (B, L, 1, K r) · (B, 1, H, K r): weighted activations per head.
    gates = weights.repeat_interleave(rank, dim=-1).unsqueeze(1)
    gated = hidden.unsqueeze(2) * gates
    n_heads = weights.shape[1]
    blocks = up.reshape(n_skills, n_heads, -1, rank).permute(1, 0, 3, 2)  # (H, K, r, O / H)
    blocks = blocks.reshape(n_heads, n_skills * rank, -1)
    return torch.einsum("blhq,hqo->blho", gated, blocks).flatten(2)


def active_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of products with ``tensor``: autocast's, or that of the tensor."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype

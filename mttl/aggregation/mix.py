"""Three ways to combine low-rank skills by the mixing weights of each example.

With ``A_k`` (I × r) and ``B_k`` (O × r) the factors of skill k, and ``w_k`` the weights of one
example:

| name | the change of the layer's output |
|---|---|
| `mix_factors` | ``x (Σ w_k A_k) (Σ w_k B_k)ᵀ``: what the code of Polytropon and MHR does |
| `mix_deltas` | ``x (Σ w_k A_k B_kᵀ)``: what the equation of the paper says |
| `mix_outputs` | ``Σ w_k (x A_k B_kᵀ)``: equal to `mix_deltas`, computed on the activations |

All three agree where one skill has weight 1 and the others 0. With H heads, `mix_factors` weighs
each of H blocks of input features of ``A`` and of output features of ``B`` by a row of its own;
the other two weigh blocks of output features.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def mix_blocks(
    stack: Float[Tensor, "K F *rest"], weights: Float[Tensor, "B H K"]
) -> Float[Tensor, "B F *rest"]:
    """Average stacked tensors over the skills, each of H blocks of features by its own weights.

    That is ``Σ_k weights[b, h, k] · stack[k, f]`` for example b and features f of block h.
    """
    n_examples, n_heads, n_skills = weights.shape
    shape = (n_examples, *stack.shape[1:])
    if n_heads == 1:
        # One matrix product: the fast path, and the common one.
        return (weights[:, 0] @ stack.flatten(1)).view(shape)
    blocks = stack.reshape(n_skills, n_heads, -1).transpose(0, 1)  # (H, K, F / H · rest)
    mixed = torch.bmm(weights.transpose(0, 1), blocks)  # (H, B, F / H · rest)
    return mixed.transpose(0, 1).reshape(shape)


def mix_factors(
    down: Float[Tensor, "K I r"], up: Float[Tensor, "K O r"], weights: Float[Tensor, "B H K"]
) -> tuple[Float[Tensor, "B I r"], Float[Tensor, "B O r"]]:
    """Return the averages of the two factors; their product is the example's low-rank change."""
    return mix_blocks(down, weights), mix_blocks(up, weights)


def mix_deltas(
    down: Float[Tensor, "K I r"], up: Float[Tensor, "K O r"], weights: Float[Tensor, "B H K"]
) -> Float[Tensor, "B O I"]:
    """Return the average products of the factors: each example's weight change, as the weight."""
    return mix_blocks(torch.bmm(up, down.transpose(1, 2)), weights)


def mix_outputs(
    x: Float[Tensor, "B L I"],
    down: Float[Tensor, "K I r"],
    up: Float[Tensor, "K O r"],
    weights: Float[Tensor, "B H K"],
) -> Float[Tensor, "B L O"]:
    """Return the average of every skill's output, without a weight matrix per example.

    By linearity the weights may be applied to the r-dimensional activations between the factors.
    """
    n_skills, _, rank = down.shape
    hidden = x @ down.transpose(0, 1).reshape(x.shape[-1], n_skills * rank)  # (B, L, K r)
    # (B, L, 1, K r) · (B, 1, H, K r): what each head reads of each skill.
    gates = weights.repeat_interleave(rank, dim=-1).unsqueeze(1)
    gated = hidden.unsqueeze(2) * gates
    n_heads = weights.shape[1]
    blocks = up.reshape(n_skills, n_heads, -1, rank).permute(1, 0, 3, 2)  # (H, K, r, O / H)
    blocks = blocks.reshape(n_heads, n_skills * rank, -1)
    return torch.einsum("blhq,hqo->blho", gated, blocks).flatten(2)


def active_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype a product with ``tensor`` runs in: autocast's, or the tensor's own."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype

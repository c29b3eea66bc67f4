r"""Fixed random projections of a short vector to many numbers, drawn from a seed whenever needed.

| name | P | stored |
|---|---|---|
| `DenseProjection` | a Gaussian matrix | D · d numbers: for small layers, as reference |
| `Fastfood` | :math:`H G \Pi H B`, cut to D rows and d columns | signs, places, 1 scale per entry |

H is the Walsh–Hadamard matrix of the next power of two, B random signs, Π a permutation and G
Gaussian scales. Columns of P have length 1 (of Fastfood in the mean over the cut), as in the
papers. Draws are those of NumPy's ``RandomState``, whose stream is frozen: the same seed gives the
same projection with every version and on every machine.

References:
    Le, Sarlós and Smola, *Fastfood: Approximating Kernel Expansions in Loglinear Time*, ICML 2013.
    Li, Farkhoor, Liu and Yosinski, *Measuring the Intrinsic Dimension of Objective Landscapes*,
    ICLR 2018, arXiv:1804.08838.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Axes up to here are multiplied by the matrix itself; on a CPU, it is the fastest size.
SMALL = 64
MOST_STORED = 2**26


def require_storable(n_in: int, n_out: int) -> None:
    """Raise ValueError if a dense projection had more than 2²⁶ entries."""
    if n_in * n_out > MOST_STORED:
        raise ValueError(
            f"a dense projection of {n_in} to {n_out} numbers would hold {n_in * n_out:,}, "
            f"above {MOST_STORED:,}; use fastfood, or a smaller dimension"
        )


class DenseProjection:
    """A Gaussian matrix with columns of length 1, from vectors of d numbers to D."""

    def __init__(self, n_in: int, n_out: int, seed: int, device: torch.device) -> None:
        matrix = np.random.RandomState(seed).standard_normal((n_out, n_in))
        matrix /= np.linalg.norm(matrix, axis=0)
        self.device = device
        self._matrix = torch.from_numpy(matrix).to(device, torch.float32)

    def __call__(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N D"]:
        return x @ self._matrix.to(x.dtype).t()


class Fastfood:
    """The structured projection, in O(D log D) operations."""

    def __init__(self, n_in: int, n_out: int, seed: int, device: torch.device) -> None:
        size, block = power_of_two(max(n_in, n_out)), power_of_two(n_in)
        draws = np.random.RandomState(seed)
        signs = 2.0 * draws.randint(0, 2, n_in) - 1
        # The first transform sees zeros behind the vector, and so repeats itself after a block.
        places = draws.permutation(size) % block
        scales = draws.standard_normal(size)
        scales /= math.sqrt(n_out * np.square(scales).sum())
        self.device = device
        self._n_out, self._padding = n_out, block - n_in
        self._signs = torch.from_numpy(signs).to(device, torch.int8)
        self._places = torch.from_numpy(places).to(device, torch.int32)
        self._scales = torch.from_numpy(scales).to(device, torch.float32)

    def __call__(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N D"]:
        block = torch.nn.functional.pad(x * self._signs.to(x.dtype), (0, self._padding))
        spread = walsh_hadamard(block)[:, self._places]
        return walsh_hadamard(spread * self._scales.to(x.dtype))[:, : self._n_out]


def walsh_hadamard(x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
    """Multiply rows, whose length is a power of two, by the Walsh–Hadamard matrix of 1 and -1."""
    n = x.shape[-1]
    matrix = x.new_ones(1, 1)
    while len(matrix) < min(n, SMALL):
        above = torch.cat([matrix, matrix], 1)
        matrix = torch.cat([above, torch.cat([matrix, -matrix], 1)])
    if n <= SMALL:
        return x @ matrix
    # The matrix is the Kronecker product of one for the blocks and one within a block.
    blocks = x.unflatten(-1, (-1, SMALL)) @ matrix
    return walsh_hadamard(blocks.mT).mT.flatten(-2)


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()

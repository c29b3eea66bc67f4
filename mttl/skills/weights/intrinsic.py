r"""Intrinsic skills: short vectors that random projections map to weight changes.

| projection | P | stored |
|---|---|---|
| `DenseProjection` | a Gaussian matrix | D · d numbers: for small layers, as reference |
| `Fastfood` | :math:`H G \Pi H B`, cut to D rows, d columns | signs, permutation, scale per entry |

H is the Walsh–Hadamard matrix of the next power of two, B random signs, Π a permutation and G
Gaussian scales. Columns of P have length 1 (for Fastfood on average), as in the papers. Samples
come from NumPy's ``RandomState``, whose stream is frozen, so that a seed gives the same projection
with every version and on every machine.
"""

import hashlib
import math
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.plugins.part_settings import OneOf, PositiveInt, Seed
from mttl.skills.inventory import Inventory, Merged, Weights

# Largest axis that is multiplied by the matrix itself; the fastest size on a CPU.
SMALL = 64
MOST_STORED = 2**26


class DenseProjection:
    """A Gaussian projection from d to D numbers, with columns of length 1."""

    def __init__(self, n_in: int, n_out: int, seed: int, device: torch.device) -> None:
        matrix = np.random.RandomState(seed).standard_normal((n_out, n_in))
        matrix /= np.linalg.norm(matrix, axis=0)
        self.device = device
        self._matrix = torch.from_numpy(matrix).to(device, torch.float32)

    def __call__(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N D"]:
        return x @ self._matrix.to(x.dtype).t()


class Fastfood:
    """The structured projection, in O(D log D) operations (Le, Sarlós and Smola, ICML 2013)."""

    def __init__(self, n_in: int, n_out: int, seed: int, device: torch.device) -> None:
        size, block = power_of_two(max(n_in, n_out)), power_of_two(n_in)
        draws = np.random.RandomState(seed)
        signs = 2.0 * draws.randint(0, 2, n_in) - 1
        # The first transform pads the vector by zeros, so its output repeats after a block.
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
    """Return the Walsh–Hadamard transform of rows whose length is a power of two."""
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
    """Return the smallest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()


class IntrinsicInventory(Inventory):
    r"""Short vectors, which fixed random projections map to weight changes.

    :math:`y = W_0 x + \sum_k w_k \Delta_k x` with
    :math:`\operatorname{vec} \Delta_k = \lambda_k P \theta_k` and P a fixed random projection of d
    to O · I numbers, seeded by the path of the layer. Since it is linear, either the skills or the
    examples' mixtures are projected, whichever are fewer. With one vector for the whole model (see
    `tie_to`), a skill has d numbers in all layers together.

    In the papers P has columns of length 1 over the whole network; in the released code of SAID,
    and here, over each layer. The papers change every parameter; here only weights of linear
    layers. SAID's λ is a number per layer and skill that starts at 1.

    Args:
        dimension: Size d of a vector.
        vector: Scope of a vector: the model with a scale per layer (``"said"``), the ``"model"``
            without scales, or each ``"layer"``.
        projection: Fast Walsh–Hadamard transforms, or a Gaussian matrix, for small layers.
        seed: Seed of the projections.
        init: ``"zero"``, or ``"kaiming"``: changes have the variance of weights of `nn.Linear`.

    References:
        Li, Farkhoor, Liu and Yosinski, *Measuring the Intrinsic Dimension of Objective Landscapes*,
        ICLR 2018, arXiv:1804.08838. Aghajanyan, Zettlemoyer and Gupta, *Intrinsic Dimensionality
        Explains the Effectiveness of Language Model Fine-Tuning*, ACL 2021, arXiv:2012.13255: SAID.
    """

    internal = ("init",)
    lacks: ClassVar = {
        "shards": ("vector != layer", "fsdp2 gathers one block at a time; set {path}.vector: layer")
    }
    uses = ("task", "token", "composed")
    composed_defaults: ClassVar = {"vector": "layer"}
    undecayed = ("scales",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        dimension: PositiveInt = 1000,
        vector: Annotated[str, OneOf("said", "model", "layer")] = "said",
        projection: Annotated[str, OneOf("fastfood", "dense")] = "fastfood",
        seed: Seed = 0,
        n_heads: int = 1,
        init: Annotated[str, OneOf("zero", "kaiming")] = "zero",
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        n_changed = in_features * out_features
        if projection == "dense" and dimension * n_changed > MOST_STORED:
            raise ValueError(
                f"a dense projection of {dimension} to {n_changed} numbers is too large, because "
                f"it has more than {MOST_STORED:,} entries; use fastfood"
            )
        self.dimension, self.of, self.projection = dimension, vector, projection
        self.seed, self.init, self.path = seed, init, ""
        self.vector = nn.Parameter(torch.empty(n_skills, dimension))
        if vector == "said":
            self.scales = nn.Parameter(torch.ones(n_skills, 1))
        self._drawn: DenseProjection | Fastfood | None = None
        self.reset_parameters()

    def set_path(self, path: str) -> None:
        self.path, self._drawn = path, None

    def tie_to(self, first: Any) -> None:
        if self.of != "layer":
            self.vector = first.vector

    def reset_parameters(self) -> None:
        if self.of == "said":
            nn.init.ones_(self.scales)
        deviation = (self.out_features / (3 * self.dimension)) ** 0.5
        nn.init.normal_(self.vector, std=deviation if self.init == "kaiming" else 0.0)

    def merge(self, weights: Weights) -> Merged:
        if self.n_heads == 1 and len(weights) < self.n_skills:
            return (self._project(weights[:, 0] @ self._vectors()),)
        return super().merge(weights)

    def changes(self) -> Float[Tensor, "K O I"]:
        return self._project(self._vectors())

    def _vectors(self) -> Float[Tensor, "K d"]:
        return self.scales * self.vector if self.of == "said" else self.vector

    def _project(self, vectors: Float[Tensor, "N d"]) -> Float[Tensor, "N O I"]:
        wide = torch.promote_types(vectors.dtype, torch.float32)
        with torch.autocast(vectors.device.type, enabled=False):
            if self._drawn is None or self._drawn.device != vectors.device:
                self._draw(vectors.device)  # type: ignore
            flat = self._drawn(vectors.to(wide))  # type: ignore[misc]
        return flat.to(vectors.dtype).view(-1, self.out_features, self.in_features)

    @torch.compiler.disable
    def _draw(self, device: torch.device) -> None:
        seed = hashlib.sha256(f"{self.seed} {self.path}".encode()).digest()[:4]
        sizes = self.dimension, self.out_features * self.in_features
        with torch.inference_mode(False):  # training uses it too
            make = Fastfood if self.projection == "fastfood" else DenseProjection
            self._drawn = make(*sizes, int.from_bytes(seed, "big"), device)

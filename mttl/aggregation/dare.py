"""DARE: drop entries of a task vector at random and rescale the others."""

import hashlib

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.config.enums import check_density


def drop_and_rescale(
    vector: Float[Tensor, "*shape"], density: float, generator: torch.Generator
) -> Float[Tensor, "*shape"]:
    r"""Keep every entry with probability d, the density: :math:`m \odot \tau / d`.

    The expectation is the vector itself. Ranges of a tensor that are drawn one after another with
    one generator get the entries that the whole tensor would have got.

    Raises:
        ValueError: If the density is not in (0, 1].

    References:
        Yu et al., *Language Models are Super Mario: Absorbing Abilities from Homologous Models as a
        Free Lunch*, ICML 2024, arXiv:2311.03099.
    """
    check_density(density)
    kept = torch.bernoulli(torch.full_like(vector, density), generator=generator)
    return vector * kept / density


def mask_generator(seed: int, model: int, name: str) -> torch.Generator:
    """Return the generator of one tensor's mask: it depends on no other tensor or model."""
    digest = hashlib.sha256(f"{seed} {model} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

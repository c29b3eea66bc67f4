"""A normalisation of the backbone together with its skills."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.skills.skilled_linear import SkilledLinear


class SkilledNorm(SkilledLinear):
    """A norm, whose gain and bias are a linear layer feature by feature, and its inventory."""

    def forward(self, x: Float[Tensor, "R *positions D"]) -> Float[Tensor, "R *positions D"]:
        return self.changed(normalised(self.base, x), self.base(x), *self.merge())


def norm_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features in and out, and whether there is a bias, of norms with gains, by path.

    Norms are layer norms of PyTorch, and root-mean-square norms of PyTorch and transformers.
    """
    return {
        path: (len(gain), len(gain), int(getattr(module, "bias", None) is not None))
        for path, module in backbone.named_modules()
        if (isinstance(module, nn.LayerNorm) or _is_rms(module))
        and isinstance(gain := getattr(module, "weight", None), nn.Parameter)
        and gain.ndim == 1
    }


def normalised(norm: nn.Module, x: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest D"]:
    """Return what a norm multiplies by its gain, in single precision at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if isinstance(norm, nn.LayerNorm):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=norm.eps)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


def _is_rms(module: nn.Module) -> bool:
    return type(module).__name__.endswith(("T5LayerNorm", "TransformersLayerNorm", "RMSNorm"))

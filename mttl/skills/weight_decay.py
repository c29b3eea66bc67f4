"""Which parameters weight decay is for: weights, and not biases, norms and scales.

The number of axes does not tell: skills are stacked, so that a stack of biases is a matrix. So a
module may say it: `undecayed` holds the names of those of its own parameters that are biases, parts
of norms or scales, and decay is for all others. Of modules that do not say it, layers of PyTorch
and of backbones, it is for all but vectors and what is called a bias.
"""

from torch import nn


def decays(model: nn.Module, name: str) -> bool:
    """Return whether weight decay is for a parameter."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    undecayed = getattr(module, "undecayed", None)
    if undecayed is not None:
        return own not in undecayed
    # A table of biases, such as those of T5's attention by distance, is the weight of a bias.
    called_bias = "bias" in own or "bias" in path.rpartition(".")[2]
    return module.get_parameter(own).ndim > 1 and not called_bias

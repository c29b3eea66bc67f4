"""Which parameters weight decay is for: weights, and not biases, norms and scales."""

from torch import nn


def decays(model: nn.Module, name: str) -> bool:
    """Return whether weight decay is for a parameter.

    The number of axes does not tell, as a stack of biases is a matrix: ``undecayed`` of a module
    names its biases and scales. Of other modules decay is for all but vectors and biases.
    """
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    undecayed = getattr(module, "undecayed", None)
    if undecayed is not None:
        return own not in undecayed
    # A table of biases, such as those of T5's attention by distance, is the weight of a bias.
    called_bias = "bias" in own or "bias" in path.rpartition(".")[2]
    return module.get_parameter(own).ndim > 1 and not called_bias

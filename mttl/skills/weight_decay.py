"""The rule for weight decay: weights decay; biases, norms and scales do not."""

from torch import nn


def decays(model: nn.Module, name: str) -> bool:
    """Return whether a parameter has weight decay.

    The attribute ``undecayed`` of a module names its biases and scales, whose stacks are matrices.
    For other modules, vectors and biases do not decay.
    """
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    undecayed = getattr(module, "undecayed", None)
    if undecayed is not None:
        return own not in undecayed
    # T5's table of biases by distance is a weight whose module is called a bias.
    called_bias = "bias" in own or "bias" in path.rpartition(".")[2]
    return module.get_parameter(own).ndim > 1 and not called_bias

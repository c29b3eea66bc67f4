"""Attention in a backbone: its modules, their heads, and their projections."""

from collections.abc import Iterator

from torch import nn

from mttl.skills.targets import linear_features

# What T5, BART, Llama, GPT-2, GPT-NeoX and their like call things.
HEAD_SIZES = ("v_head_dim", "head_dim", "key_value_proj_dim", "head_size")
OUTPUTS = ("o", "o_proj", "out_proj", "c_proj", "dense")


def _attention_modules(
    backbone: nn.Module,
) -> Iterator[tuple[str, nn.Module, int, str, tuple[int, int]]]:
    """Give path, module, features of a head, and name and features of the output projection.

    Only of modules that know the size of their heads, and whose projection joins whole ones; state
    spaces have a convolution besides.
    """
    for path, module in backbone.named_modules():
        size = next((v for n in HEAD_SIZES if isinstance(v := getattr(module, n, None), int)), None)
        output = next((name for name in OUTPUTS if name in module._modules), None)
        if size is not None and output is not None and not hasattr(module, "conv1d"):
            features = linear_features(module.get_submodule(output))
            if features is not None and features[0] % size == 0:
                yield path, module, size, output, features


def attention_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return sizes of attention modules, by path: of keys, of values, heads, and of hidden states.

    A hidden state that an attention reads has as many features as its output projection returns.
    """
    found = {}
    for path, module, size, _, (n_joined, n_hidden) in _attention_modules(backbone):
        heads = n_joined // size
        n_values = heads // getattr(module, "num_key_value_groups", 1)
        key_features = n_values * getattr(module, "qk_head_dim", size)
        found[path] = (key_features, n_values * size, heads, n_hidden)
    return found


def head_projections(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features in and out, and heads, of the output projections of attention, by path."""
    return {
        f"{path}.{output}" if path else output: (*features, features[0] // size)
        for path, _, size, output, features in _attention_modules(backbone)
    }

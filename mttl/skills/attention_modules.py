"""Attention in a backbone: its modules, their heads, and their projections."""

from collections.abc import Iterator

from torch import nn

from mttl.skills.targets import linear_features

# What T5, BART, Llama, GPT-2, GPT-NeoX and their like call things.
HEAD_SIZES = ("v_head_dim", "head_dim", "key_value_proj_dim", "head_size")
OUTPUTS = ("o", "o_proj", "out_proj", "c_proj", "dense")
ATTENTION_WORDS = {
    "attention": ["*"],
    "self_attention": [
        *("SelfAttention", "SelfAttention.o", "self_attn", "self_attn.*", "attn", "attn.c_proj"),
        *("attention", "attention.dense"),
    ],
    "cross_attention": [
        *("EncDecAttention", "EncDecAttention.o", "encoder_attn", "encoder_attn.*"),
        *("crossattention", "crossattention.c_proj"),
    ],
}


def attention_modules(backbone: nn.Module) -> Iterator[tuple[str, nn.Module, int, str]]:
    """Find modules that know the size of their heads and have an output projection.

    Args:
        backbone: Any model.

    Yields:
        Path, module, features of a head, and the name of the projection.
    """
    for path, module in backbone.named_modules():
        size = next((v for n in HEAD_SIZES if isinstance(v := getattr(module, n, None), int)), None)
        output = next((name for name in OUTPUTS if name in module._modules), None)
        if size is not None and output is not None:
            yield path, module, size, output


def attention_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features of keys and of values, and heads that ask, of attention modules, by path.

    Args:
        backbone: Any model.
    """
    found = {}
    for path, module, size, output in attention_modules(backbone):
        features = linear_features(module.get_submodule(output))
        if features is not None and features[0] % size == 0:
            heads = features[0] // size
            n_values = heads // getattr(module, "num_key_value_groups", 1)
            key_size = getattr(module, "qk_head_dim", size)
            found[path] = (n_values * key_size, n_values * size, heads)
    return found


def head_projections(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features in and out, and heads, of the output projections of attention, by path.

    Args:
        backbone: Any model.
    """
    found = {}
    for path, module, size, output in attention_modules(backbone):
        features = linear_features(module.get_submodule(output))
        if features is not None and features[0] % size == 0:
            found[f"{path}.{output}" if path else output] = (*features, features[0] // size)
    return found

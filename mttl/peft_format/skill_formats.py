"""Conversion of one mixture of skills to an equivalent adapter of PEFT or AdapterHub, by kind."""

import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.packed_weights import is_transposed
from mttl.io.errors import CheckpointError
from mttl.merging.low_rank_factors import LowRank
from mttl.peft_format.peft_folder import of_base, task_type_of, write_peft
from mttl.peft_format.peft_lora import (
    check_paths,
    common_scaling,
    instead,
    lora_adapter,
    mixture_factors,
)
from mttl.skills.blocks.feed_forward_experts import ACTIVATIONS
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.skilled_model import SkilledModel

Written = tuple[dict[str, Any], dict[str, Tensor]]
Writer = Callable[[SkilledModel, Mapping[str, SkilledLayer], Tensor], Written]
# AdapterHub's names of the positions after blocks, and of the modules there.
_BEHIND = {
    "SelfAttention": ("mh_adapter", "adapters"),
    "EncDecAttention": ("cross_adapter", "adapters"),
    "DenseReluDense": ("output_adapter", "adapters"),
    "self_attn": ("mh_adapter", "attention_adapters.adapters"),
    "mlp": ("output_adapter", "output_adapters.adapters"),
}
ADAPTERHUB_TENSORS = "adapter.safetensors"
_PREFIX_NOTE = (
    " To generate with prefixes, PEFT 0.21 needs transformers before 5.24; later versions lose "
    "them, and only single passes are correct."
)
_ADAPTERHUB_NOTE = (
    " It was not checked by loading: AdapterHub's library `adapters` 1.3 needs transformers 4.57."
)
_ADAPTERHUB_MODELS = ("t5", "mt5", "llama", "mistral")
# Values of vLLM's --max-lora-rank.
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class SkillAdapter(NamedTuple):
    """An adapter of another library."""

    library: Literal["peft", "adapters"]
    config: dict[str, Any]  # content of adapter_config.json
    tensors: dict[str, Tensor]  # by path of the layer and parameter
    factors: Mapping[str, LowRank]  # of a LoRA adapter, with the norm of the truncated part

    @property
    def search(self) -> dict[str, Any]:
        """Generation settings that the library needs instead of the run's.

        PEFT's Poly does not support beams. PEFT 0.21 repeats prompts before every new token with
        transformers 5.24, which is correct only without a cache.
        """
        known = {"PROMPT_TUNING": {"use_cache": False}, "POLY": {"num_beams": 1}}
        return known.get(self.config.get("peft_type", ""), {})

    @property
    def note(self) -> str:
        """The known limitation of the adapter in its library, or an empty text."""
        notes = {"PREFIX_TUNING": _PREFIX_NOTE, None: _ADAPTERHUB_NOTE}
        return notes.get(self.config.get("peft_type"), "")

    def write(self, folder: Path) -> None:
        """Write the two files into a folder."""
        theirs = {} if self.library == "peft" else {"prefix": "", "file": ADAPTERHUB_TENSORS}
        write_peft(folder, self.config, self.tensors, **theirs)


@torch.no_grad()
def skill_adapter(
    model: SkilledModel,
    mixing: Float[Tensor, "G H K"],
    rank: int | None = None,
    *,
    base: str | None,
    name: str = "task",
) -> SkillAdapter:
    """Return one mixture as an equivalent adapter; ``name`` is that of AdapterHub's adapter.

    With a rank, low-rank factors of at most this rank are written for every kind.

    Raises:
        CheckpointError: If there is no equivalent format; the message has an alternative.
    """
    layers = model.skilled_layers()
    norms = {p: one for p, one in layers.items() if one.inventory.adapter_format == "LN_TUNING"}
    others = {path: one for path, one in layers.items() if path not in norms} or norms
    kinds = {type(layer.inventory) for layer in others.values()}
    factors: dict[str, LowRank] = {}
    lora = partial(_lora, rank=rank, factors=factors)
    alone = rank is None and len(kinds) == 1
    writer = WRITERS.get(kinds.pop().adapter_format, lora) if alone else lora
    check_paths(model)
    try:
        config, tensors = writer(model, others, mixing)
        if norms and others is not norms:
            _require("target_modules" in config, "no format supports them with skills of norms")
            config["modules_to_save"] = list(norms)
            tensors |= _gains(norms, mixing, "")
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"no format of PEFT or AdapterHub fits the skills: {error}. {instead(model, mixing)}"
        ) from error
    network: Any = model.backbone
    if "peft_type" not in config:
        name = re.sub(r"\W", "_", name)
        about = {"name": name, "model_type": network.config.model_type, "version": "adapters.1.3.0"}
        about |= {"model_name": base, "model_class": type(network).__name__}
        tensors = {key.format(name=name): tensor for key, tensor in tensors.items()}
        return SkillAdapter("adapters", about | config, tensors, {})
    config |= of_base(base, task_type_of(network))
    return SkillAdapter("peft", config, tensors, factors)


def _require(kept: bool, reason: str) -> None:
    if not kept:
        raise ValueError(reason)


def _merged(layer: SkilledLayer, mixing: Float[Tensor, "G H K"]) -> list[Tensor]:
    return [part[0] for part in layer.inventory.merge(mixing[layer.group][None])]


def _targets(kind: str, layers: Mapping[str, SkilledLayer], **settings: Any) -> dict[str, Any]:
    return {"peft_type": kind, "target_modules": list(layers), **settings}


def _transposed(model: SkilledModel) -> bool:
    return any(map(is_transposed, model.backbone.modules()))


def _lora(
    model: SkilledModel,
    layers: Mapping[str, SkilledLayer],
    mixing: Tensor,
    *,
    rank: int | None,
    factors: dict[str, LowRank],
) -> Written:
    factors |= mixture_factors(layers, mixing, rank)
    return lora_adapter(factors, transposed=_transposed(model), scaling=common_scaling(model))


def _vectors(
    model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor, *, kind: str
) -> Written:
    """Return a vector per layer: the scale of its output (IA3), or a change of its bias (BEFT)."""
    found = {path: _merged(layer, mixing)[0] for path, layer in layers.items()}
    if kind == "IA3":
        settings = {"feedforward_modules": [], "fan_in_fan_out": _transposed(model)}
        tensors = {f"{path}.ia3_l": vector[:, None] for path, vector in found.items()}
        return _targets(kind, layers, **settings), tensors
    _require_linear(kind, layers)
    tensors = {f"{path}.beft_bias": vector[None] for path, vector in found.items()}
    return _targets(kind, layers), tensors


def _kronecker(model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor) -> Written:
    _require_linear("LoKr", layers)
    tensors, sides, roots = {}, set(), True
    for path, layer in layers.items():
        skills: Any = layer.inventory
        weights = mixing[layer.group]
        if skills.mix == "deltas":
            (used,) = weights.any(dim=0).nonzero(as_tuple=True)
            _require(len(weights) == len(used) == 1, "PEFT's LoKr is one product, not a sum")
            left, right = skills.left[used[0]], skills.right[used[0]]
            right = right * (skills.scale * weights[0, used[0]])
        else:
            left, right = _merged(layer, mixing)
        tensors |= {f"{path}.lokr_w1": left, f"{path}.lokr_w2": right}
        sides |= {*left.shape}
        roots &= all(_near_root(a * b) == a for a, b in zip(left.shape, right.shape, strict=True))
    _require(
        roots or len(sides) == 1,
        f"PEFT's LoKr needs left factors near the square roots of both sizes, or square ones; "
        f"skills.shape has {sorted(sides)}",
    )
    rank = max(max(tensor.shape) for tensor in tensors.values())  # so that both factors are dense
    settings = {"r": rank, "alpha": rank, "decompose_factor": -1 if roots else sides.pop()}
    return _targets("LOKR", layers, **settings), tensors


def _near_root(size: int) -> int:
    return next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)


def _norms(model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor) -> Written:
    return _targets("LN_TUNING", layers), _gains(layers, mixing, ".ln_tuning_layers")


def _gains(layers: Mapping[str, SkilledLayer], mixing: Tensor, inside: str) -> dict[str, Tensor]:
    tensors = {}
    for path, layer in layers.items():
        norm: Any = layer
        gain, bias = norm.inventory.fold(norm.weight, norm.bias, mixing[norm.group])
        tensors[f"{path}{inside}.weight"] = gain
        if bias is not None:
            tensors[f"{path}{inside}.bias"] = bias
    return tensors


def _prompt(model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor) -> Written:
    ((prompt,),) = (_merged(layer, mixing) for layer in layers.values())
    config = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": len(prompt)}
    return config | {"num_transformer_submodules": 1}, {"prompt_embeddings": prompt}


def _prefix(model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor) -> Written:
    """Return prefixes for PEFT, which puts them into the cache at the first positions."""
    network: Any = model.backbone
    gated = any(getattr(layer.inventory, "gated", False) for layer in layers.values())
    _require(not gated, "PEFT has no gated prefixes (train with skills.gated: false)")
    decoder: Any = network.get_decoder()
    _require(
        hasattr(decoder, "rotary_emb") and not getattr(network.config, "is_encoder_decoder", False),
        "PEFT's prefixes shift the positions of the text, which is equivalent only in decoder-only "
        "models with rotary positions",
    )
    config = network.config.get_text_config()
    _require(
        len(layers) == config.num_hidden_layers,
        f"PEFT's prefixes are in all layers ({config.num_hidden_layers}), not {len(layers)}",
    )
    _require(
        not getattr(config, "sliding_window", None),
        "PEFT's prefixes leave the sliding window of attention, unlike these",
    )
    rows = []
    for layer in layers.values():
        attention: Any = layer.base
        keys, values = (part.t() for part in _merged(layer, mixing))  # (P, N d)
        heads = keys.unflatten(1, (-1, attention.head_dim)).transpose(0, 1)[None]
        cos, sin = decoder.rotary_emb(keys, torch.tensor([[len(keys)]], device=keys.device))
        size = (cos**2 + sin**2).mean().sqrt()  # some rotations are scaled
        rotate: Any = sys.modules[type(attention).__module__].apply_rotary_pos_emb
        # Rotations are relative: a key rotated to position P is like one without a position.
        turned = rotate(heads, heads, cos / size, sin / size)[1] / size
        rows += [turned[0].transpose(0, 1).flatten(1), values]
    table = torch.cat(rows, dim=1)
    settings = {"num_virtual_tokens": len(table), "num_transformer_submodules": 1}
    return {"peft_type": "PREFIX_TUNING", **settings}, {"prompt_embeddings": table}


def _bottleneck(model: SkilledModel, layers: Mapping[str, SkilledLayer], mixing: Tensor) -> Written:
    """Return dense adapters for AdapterHub; a sum of outputs becomes one wider adapter."""
    network: Any = model.backbone
    kind = network.config.model_type
    _require(
        kind in _ADAPTERHUB_MODELS,
        f"AdapterHub's format is supported for {', '.join(_ADAPTERHUB_MODELS)}, not for {kind}",
    )
    paths = {path for path, _ in network.named_modules()}
    width = network.config.hidden_size
    tensors, places, sizes, found = {}, set(), set(), 0
    for path, layer in layers.items():
        skills: Any = layer.inventory
        _require(skills.reads == "output", "AdapterHub's parallel adapters read before the norm")
        _require(len(skills.stages) == 1, "AdapterHub has no single adapter of several stages")
        _require(
            skills.out_features == width,
            f"'{path}' has {skills.out_features} output features, the model {width}",
        )
        weights = mixing[layer.group][None]
        if skills.mix == "factors":
            down, down_bias, up, up_bias = (part[0] for part in skills.projections(weights))
        else:
            own = weights[0, 0]
            down, down_bias, up, up_bias = skills.projections()
            down, down_bias, up_bias = down.flatten(0, 1), down_bias.flatten(), own @ up_bias
            up = (own[:, None, None] * up).transpose(0, 1).flatten(1)
        parent, _, last = path.rpartition(".")
        place, inside = _BEHIND[last]
        places.add(place)
        stem = f"{parent}.{inside}.{{name}}."
        linear = "adapter_down.1." if skills.layer_norm else "adapter_down.0."
        tensors |= {f"{stem}{linear}weight": down, f"{stem}{linear}bias": down_bias}
        tensors |= {f"{stem}adapter_up.weight": up, f"{stem}adapter_up.bias": up_bias}
        for norm in ("adapter_norm_before.", "adapter_down.0.") if skills.layer_norm else ():
            tensors[f"{stem}{norm}weight"] = torch.ones_like(up_bias)
            tensors[f"{stem}{norm}bias"] = torch.zeros_like(up_bias)
        act = next(word for word, known in ACTIVATIONS.items() if known is skills.activation)
        sizes.add((len(down), act, float(skills.scale), skills.layer_norm))
    found = sum(_BEHIND.get(path.rpartition(".")[2], ("",))[0] in places for path in paths)
    complete = len(sizes) == 1 and found == len(layers)
    _require(complete, "AdapterHub's adapters must be in all layers, with one size")
    hidden, activation, scale, normed = sizes.pop()
    settings = dict.fromkeys(("mh_adapter", "cross_adapter", "output_adapter"), False)
    settings |= dict.fromkeys(places, True)
    settings |= {"non_linearity": activation, "scaling": scale, "ln_before": normed}
    whole = width % hidden == 0 or hidden % width == 0  # otherwise AdapterHub rounds down
    settings |= {"reduction_factor": width / (hidden if whole else hidden + 0.5)}
    settings |= {"original_ln_before": False, "architecture": None}
    return {"hidden_size": width, "config": settings}, tensors


def _require_linear(format: str, layers: Mapping[str, SkilledLayer]) -> None:
    strange = {type(one.base) for one in layers.values()} - {nn.Linear}
    names = ", ".join(kind.__name__ for kind in strange)
    _require(not strange, f"PEFT's {format} is for nn.Linear, not {names}")


WRITERS: dict[str, Writer] = {
    "IA3": partial(_vectors, kind="IA3"),
    "BEFT": partial(_vectors, kind="BEFT"),
    "LOKR": _kronecker,
    "LN_TUNING": _norms,
    "PROMPT_TUNING": _prompt,
    "PREFIX_TUNING": _prefix,
    "ADAPTERHUB": _bottleneck,
}


def vllm_rank(task: str, adapter: SkillAdapter) -> int:
    """Return vLLM's smallest ``--max-lora-rank`` for the adapter of a task.

    The rules are those of ``vllm/config/lora.py`` and ``vllm/lora/peft_helper.py``.

    Raises:
        CheckpointError: If vLLM cannot serve the adapter.
    """
    config, kind = adapter.config, adapter.config.get("peft_type", "AdapterHub")
    problem, advice = "", "serve the run with mttl serve"
    if config.get("task_type") == "SEQ_2_SEQ_LM":
        problem = "has an encoder-decoder backbone, which vLLM does not serve"
    elif kind != "LORA":
        problem = f"has an adapter of {kind}, and vLLM serves only LoRA"
        advice += ", or try --rank R"
    elif "modules_to_save" in config:
        problem = "has trained norms, which vLLM does not load with LoRA"
    elif config["fan_in_fan_out"]:
        problem = "adapts transposed layers (GPT-2), for which vLLM has no LoRA"
    elif config["r"] > VLLM_RANKS[-1]:
        problem = f"has a LoRA of rank {config['r']}, and vLLM's maximum is {VLLM_RANKS[-1]}"
        advice = f"truncate it with --rank {VLLM_RANKS[-1]}"
    if problem:
        raise CheckpointError(f"the task '{task}' {problem}; {advice}")
    return next(rank for rank in VLLM_RANKS if rank >= config["r"])

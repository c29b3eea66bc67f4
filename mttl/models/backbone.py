"""Backbones: pretrained language models, or new ones with random weights."""

import copy
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    ByT5Tokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AutoHfQuantizer

from mttl.aggregation.packed_weights import keep_format, stored
from mttl.config.backbone_schema import Quantisation
from mttl.io.errors import ConfigError, nearest, raised_as
from mttl.io.reading import reason
from mttl.models.model_names import check_model_name, unreachable
from mttl.models.quantised import check_quantisation, quantisation_settings, return_freed_memory
from mttl.runtime.libraries import quiet_loading

logger = logging.getLogger(__name__)

BYTE_TOKENIZER = "byte"
# Settings that every configuration accepts, although some do not list them.
SHARED_SETTINGS = ("bos_token_id", "decoder_start_token_id", "attn_implementation")


def load_pretrained(
    name: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    dtype: str = "float32",
    quantize: Quantisation | None = None,
    train: bool = False,
    empty: bool = False,
) -> PreTrainedModel:
    """Return a pretrained language model in evaluation mode, by its folder or name on the hub.

    Weights have the stored type with ``dtype="auto"``. Linear layers are quantised while reading,
    on the CPU, so that all machines get equal weights; ``train`` is whether weights will be
    trained. An encoder has an output layer only if its checkpoint does. With ``empty`` the model is
    in training mode on the meta device, with possibly other types. Raises a `ConfigError` if it
    cannot be found, reached or read, weights are missing, or stored quantised weights would be
    quantised or trained.
    """
    if quantize is not None:
        check_quantisation(quantize)
    torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    kind, config = read_architecture(name, revision=revision, gguf_file=gguf_file)
    where = _where(revision, gguf_file)
    quiet = nullcontext() if sys.stderr.isatty() else quiet_loading()
    with _reached("backbone.name", name), quiet:
        packed = _packing(name, config, kind, torch_dtype, quantize, train=train)
        if empty:
            with torch.device("meta"):
                model = kind.from_config(config, trust_remote_code=False)
            stored_as = getattr(config, "quantization_config", None)
            if settings := packed.get("quantization_config", stored_as):  # quantised layers
                quantiser = AutoHfQuantizer.from_config(settings, pre_quantized=quantize is None)
                quantiser.preprocess_model(model, device_map=None)
            keep_format(model)
            return model
        if gguf_file and hasattr(transformers, "GgufConfig"):  # the default keeps packed weights
            packed["quantization_config"] = transformers.GgufConfig(dequantize=True)
        loaded: Any = kind.from_pretrained(
            name,
            dtype=torch_dtype,
            output_loading_info=True,
            trust_remote_code=False,
            weights_only=True,
            **where,
            **packed,
        )
    model, report = loaded
    # For missing weights transformers only warns, and uses random ones.
    missing = sorted(report["missing_keys"] & dict(model.named_parameters()).keys())
    outside = not any(weight.startswith(f"{model.base_model_prefix}.") for weight in missing)
    if kind is AutoModelForMaskedLM and outside and missing:
        model, missing = model.base_model, []  # its output layer was not trained
    values = model.named_parameters()
    strange = (weight for weight, value in values if not stored(value)[1].isfinite().all())
    place = f"backbone.name ('{name}')"
    if missing:
        raise ConfigError(
            f"{place} lacks {len(missing)} weights that its config.json requires, such as "
            f"'{missing[0]}'. Use a complete checkpoint of a language model"
        )
    if (weight := next(strange, None)) is not None:
        raise ConfigError(
            f"{place} has weights that are not finite, such as '{weight}'. Copy it again, or use "
            "another"
        )
    if gguf_file and getattr(model, "hf_quantizer", None) is not None:
        # The weights are dequantised; with the configuration, saving would fail.
        model.hf_quantizer.remove_quantization_config(model)
    keep_format(model)
    if quantize is not None:
        return_freed_memory()
    return model


def read_architecture(
    name: str, *, revision: str | None = None, gguf_file: str | None = None
) -> tuple[Any, PretrainedConfig]:
    """Return the class and configuration of a language model, without reading weights."""
    where = _where(revision, gguf_file)
    with _reached("backbone.name", name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **where)
    return _class_of(config), config


def _class_of(config: PretrainedConfig) -> Any:
    """Return the class of a language model."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    decoder = getattr(config, "is_decoder", False) or (
        type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING  # as BART's decoder alone
    )
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not decoder
    return AutoModelForMaskedLM if masked else AutoModelForCausalLM


def _where(revision: str | None, gguf_file: str | None) -> dict[str, str]:
    return {"revision": revision or "main", **({"gguf_file": gguf_file} if gguf_file else {})}


def _packing(
    name: str, config: Any, kind: Any, dtype: Any, quantize: Quantisation | None, *, train: bool
) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for a backbone with quantised weights."""
    kept = getattr(config, "quantization_config", None) or {}
    method = (kept if isinstance(kept, dict) else vars(kept)).get("quant_method")
    if method is not None and quantize is not None:
        raise ConfigError(
            f"backbone.quantize ('{quantize}') cannot quantise '{name}', which is already stored "
            f"quantised ({method}); remove it, or use a backbone in floating point"
        )
    if method is not None and train:
        raise ConfigError(
            f"backbone.train (true): '{name}' is stored quantised ({method}), which cannot be "
            "trained; set it to false, or use a backbone in floating point"
        )
    # Trainers and commands move models; the default of transformers is the first GPU.
    device = {"device_map": {"": "cpu"}}
    if quantize is not None:
        known = (config.dtype or torch.float32) if dtype == "auto" else dtype
        with torch.device("meta"):
            empty = kind.from_config(copy.deepcopy(config))
        return {"quantization_config": quantisation_settings(quantize, empty, known), **device}
    return device if method in ("bitsandbytes", "torchao") else {}


def build_random(model_type: str, settings: Mapping[str, Any]) -> PreTrainedModel:
    """Return a language model with random weights, in training mode; see `new_architecture`."""
    kind, config = new_architecture(model_type, settings)
    with _refused(model_type):
        return kind.from_config(config)


def new_architecture(model_type: str, settings: Mapping[str, Any]) -> tuple[Any, PretrainedConfig]:
    """Return class and configuration of a model type of transformers, such as ``"t5"``."""
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"backbone.model_type ('{model_type}') is not a model type of transformers."
            f"{nearest(model_type, CONFIG_MAPPING.keys())}"
        )
    known = AutoConfig.for_model(model_type)
    # Configurations accept any name, so misspelt settings must be rejected here.
    for key in settings:
        if not hasattr(known, key) and key not in SHARED_SETTINGS:
            raise ConfigError(
                f"backbone.config.{key} is not a setting of '{model_type}'."
                f"{nearest(key, known.to_dict())}"
            )
    with _refused(model_type):
        config = AutoConfig.for_model(model_type, **settings)
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id
    kind = _class_of(config)
    if type(config) not in kind._model_mapping:
        raise ConfigError(
            f"backbone.model_type ('{model_type}') is not a language model; use t5, bart, llama or "
            "bert"
        )
    return kind, config


def _refused(model_type: str) -> AbstractContextManager[None]:
    place = f"backbone.config does not fit '{model_type}'"
    # Model types raise various errors for invalid values.
    return raised_as(ConfigError, place, Exception, text=reason)


def scale_initial_weights(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply initial weights in place by factors of name patterns with ``*`` and ``?``.

    Some initial weights are too small: T5's relative position biases have a standard deviation of
    d^-0.5, and attention to a neighbouring position needs differences of several units. Adam
    changes a weight by at most the learning rate per step, which takes thousands of steps.
    """
    parameters = dict(model.named_parameters())
    for pattern, factor in factors.items():
        names = [name for name in parameters if fnmatchcase(name, pattern)]
        _require_match("backbone.initial_scale", pattern, names, parameters)
        with torch.no_grad():
            for name in names:
                parameters[name].mul_(factor)


def choose_trained(model: nn.Module, train: bool | Sequence[str]) -> None:
    """Set ``requires_grad`` of a backbone's parameters: all, none, or those that match patterns.

    Patterns with ``*`` and ``?`` match the end of a name.
    """
    model.requires_grad_(train is True)
    parameters = dict(model.named_parameters())
    for pattern in [] if isinstance(train, bool) else train:
        names = [name for name in parameters if fnmatchcase(f".{name}", f"*.{pattern}")]
        _require_match("backbone.train", pattern, names, parameters)
        for name in names:
            parameters[name].requires_grad_(True)


def _require_match(setting: str, pattern: str, found: Sequence[str], names: Iterable[str]) -> None:
    if not found:
        endings = sorted({".".join(name.split(".")[-2:]) for name in names})
        raise ConfigError(
            f"{setting}: '{pattern}' matches no parameter of the backbone."
            f"{nearest(pattern, names)} Ends of their names: {', '.join(endings)}"
        )


def load_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    key: str = "backbone.tokenizer",
) -> PreTrainedTokenizerBase:
    """Return a tokenizer; ``"byte"`` is ByT5's, which reads UTF-8 bytes and needs no files.

    Messages name the setting ``key`` if no folder or model has this name. Raises a `ConfigError` if
    the tokenizer cannot be found, reached or read, or has no vocabulary.
    """
    if name == BYTE_TOKENIZER:
        return ByT5Tokenizer()
    where = _where(revision, gguf_file)
    with _reached("backbone.tokenizer" if Path(name).is_dir() else key, name):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **where)
    # Without files, transformers builds a tokenizer of special tokens and a word boundary.
    if len(tokenizer) <= len(tokenizer.all_special_tokens) + 1:
        raise ConfigError(
            f"backbone.tokenizer ('{name}') has no vocabulary: its files are missing. Copy them, "
            f"or use another tokenizer, such as {BYTE_TOKENIZER}"
        )
    return tokenizer


def is_decoder_only(backbone: nn.Module) -> bool:
    """Return whether a model generates text without an encoder."""
    return not (backbone.config.is_encoder_decoder or is_encoder(backbone))  # type: ignore


def is_encoder(backbone: nn.Module) -> bool:
    """Return whether a model reads texts but generates none, as BERT."""
    return isinstance(backbone, PreTrainedModel) and not backbone.can_generate()


def hidden_states(backbone: nn.Module, **inputs: Tensor) -> Float[Tensor, "B L D"]:
    """Return the last hidden states of an encoder, of a decoder, or of T5's encoder."""
    return _stack(backbone)(**inputs).last_hidden_state


def freeze_unread(backbone: nn.Module) -> None:
    """Freeze what `hidden_states` does not use: an output layer, T5's decoder."""
    used = {id(value) for value in _stack(backbone).parameters()}
    for value in backbone.parameters():
        if id(value) not in used:
            value.requires_grad_(False)


def _stack(backbone: Any) -> Any:
    encoder_decoder = backbone.config.is_encoder_decoder
    return backbone.get_encoder() if encoder_decoder else backbone.base_model


@contextmanager
def _reached(key: str, name: str) -> Iterator[None]:
    """Raise ConfigError with the setting's name for errors while reading files."""
    check_model_name(key, name)
    try:
        yield
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # transformers raises various errors for unreadable files
        raise ConfigError(_unreachable(key, name, error)) from error


def _unreachable(key: str, name: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, ImportError):
        return f"{key} ('{name}') needs a package that is not installed: {cause}"
    if Path(name).is_dir():
        if not {path.suffix for path in Path(name).iterdir()} & {".json", ".gguf"}:
            return f"{key} ('{name}') is a folder without a model; use the folder of a model"
        # Only the first line of the message of transformers.
        cause = cause.strip().removesuffix(":").removesuffix(" from one of")
        return f"{key} ('{name}') is a folder that could not be read: {cause}"
    return unreachable(key, name, cause)

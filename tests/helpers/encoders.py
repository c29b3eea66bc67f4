"""Tiny encoders with fixed random weights and an output layer for masked tokens, by model type."""

from typing import Any

from transformers import AutoConfig, AutoModelForMaskedLM

from helpers.backbones import VOCABULARY, fill

_SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
_SIZES |= {"num_attention_heads": 4, "hidden_dropout_prob": 0.0, "pad_token_id": 0}
_SIZES |= {"attention_probs_dropout_prob": 0.0}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "pad_token_id": 0}
    | {"dropout": 0.0, "attention_dropout": 0.0},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2}
    | dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    | {name: size for name, size in _SIZES.items() if not name.endswith("prob")},
    "deberta-v2": _SIZES | _RELATIVE,
}
ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", *_OWN)


def tiny_encoder(kind: str) -> Any:
    sizes = _OWN.get(kind, _SIZES) | {"vocab_size": VOCABULARY}
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **sizes))
    fill(model)
    return model.eval()

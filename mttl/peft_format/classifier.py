"""Heads of tasks as those of transformers' classes for classification, in PEFT's format."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from mttl.heads.head import Head, HeadBatch
from mttl.heads.label_head import LabelHead
from mttl.heads.token_head import TokenHead
from mttl.io.errors import CheckpointError
from mttl.merging.check_written import logits, rounding
from mttl.models.backbone import hidden_states
from mttl.peft_format.skill_formats import SkillAdapter

KINDS: dict[type[Head], tuple[str, Any]] = {
    TokenHead: ("TOKEN_CLS", AutoModelForTokenClassification),
    LabelHead: ("SEQ_CLS", AutoModelForSequenceClassification),
}


@torch.no_grad()
def with_head(adapter: SkillAdapter, backbone: Any, head: Head) -> tuple[SkillAdapter, Any]:
    """Return an adapter with a head, and transformers' model of a bare backbone and the head.

    The model shares the layers of the backbone; its ``config`` has the labels, and no padding.
    Raises a `CheckpointError` if PEFT or transformers has no model with equal outputs.
    """
    task_type, kind = KINDS.get(type(head), ("", None))
    config: Any = copy.deepcopy(backbone.config)
    known = kind is not None and type(config) in kind._model_mapping
    network, theirs = None, {}
    if known and adapter.library == "peft" and not config.is_encoder_decoder:
        config.id2label = dict(enumerate(head.labels or ["LABEL_0"]))
        config.label2id = {label: place for place, label in config.id2label.items()}
        config.problem_type = None if head.labels else "regression"
        config.pad_token_id = None
        network, theirs = _joined(kind, config, backbone)
    values = [value.to(backbone.dtype) for value in head.parameters()]
    tensors = dict(zip(theirs, values, strict=False))
    equal = [*theirs.values()] == [value.shape for value in values]
    if network is not None and equal:
        network.load_state_dict(tensors, strict=False, assign=True)
        due = head_logits(backbone, head)
        equal = bool((logits(network) - due).norm() <= rounding(network) * due.norm())
    if network is None or not equal:
        raise CheckpointError(
            f"transformers and PEFT have no equal of a {type(head).__name__} on "
            f"{type(backbone).__name__}; use the run itself (mttl predict, mttl serve)"
        )
    # Modules of the model, or of its base (BERT's pooler).
    depth = {name: 1 + name.startswith(f"{network.base_model_prefix}.") for name in tensors}
    modules = dict.fromkeys(".".join(name.split(".")[:n]) for name, n in depth.items())
    saved = [*adapter.config.get("modules_to_save", []), *modules]
    own = {"modules_to_save": saved, "task_type": task_type}
    made = adapter._replace(config=adapter.config | own, tensors={**adapter.tensors, **tensors})
    return made, network


def _joined(kind: Any, config: Any, backbone: Any) -> tuple[Any, dict[str, torch.Size]]:
    """Return a model with a backbone's layers, and its other parameters, which have no values."""
    with torch.device("meta"):
        network = kind.from_config(config).eval()
    network.config.architectures = [type(network).__name__]
    prefix, own = network.base_model_prefix, backbone.base_model
    ours = {f"{prefix}.{name}" for name, _ in own.named_parameters()}
    theirs = {name: value.shape for name, value in network.named_parameters() if name not in ours}
    base = copy.copy(own)
    base._modules = network.base_model._modules | own._modules
    for name in base._modules.keys() - own._modules.keys():
        vars(base).pop(name, None)  # None, of a pooler that the backbone does without
    setattr(network, prefix, base)
    return network, theirs


def head_logits(backbone: Any, head: Head) -> Tensor:
    """Return the scores of a head for the ids of `logits`: of every token, or of the text."""

    def ask(**inputs: Tensor) -> tuple[Tensor]:
        hidden = hidden_states(backbone, **inputs).to(next(head.parameters()).dtype)
        places = torch.arange(hidden.shape[1], device=hidden.device)[None]
        return (head(hidden, HeadBatch(inputs["attention_mask"].bool(), places)),)

    return logits(backbone, ask)

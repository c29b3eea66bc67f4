"""The models that the benchmarks compare: one random T5, alone or with adapters."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the parent process of a benchmark never loads these
    from torch import Tensor, nn
    from transformers import T5ForConditionalGeneration

RANK, N_SKILLS, N_TASKS = 16, 8, 16
TINY: dict[str, Any] = {
    "d_model": 128,
    "d_kv": 32,
    "num_heads": 4,
    "d_ff": 512,
    "num_layers": 2,
    "vocab_size": 2048,
}


def make_backbone(size: str) -> "T5ForConditionalGeneration":
    """Return a frozen T5 with random weights: T5-small's sizes (the default ones), or tiny."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(**(TINY if size == "tiny" else {}), dropout_rate=0.0)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config).requires_grad_(False)


def add_adapters(backbone: "T5ForConditionalGeneration", variant: str) -> "nn.Module":
    """Put the adapters of a variant on all attention and feed-forward layers.

    Args:
        backbone: As from `make_backbone`.
        variant: ``"PEFT LoRA"``, ``"PEFT Poly H=…"`` or ``"ours H=…"``, the
            latter also as ``"ours, one task H=…"``.
    """
    targets = ["q", "k", "v", "o", "wi", "wo"]
    if variant == "PEFT LoRA":
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=targets)
        return get_peft_model(backbone, config)
    kind, _, n_heads = variant.rpartition(" H=")
    drawn = not kind.endswith(", one task")  # rows that draw noise share no weights
    if kind == "PEFT Poly":
        from peft import PolyConfig, get_peft_model

        config = PolyConfig(
            task_type="SEQ_2_SEQ_LM",  # without it, task ids do not reach the layers
            r=RANK,
            n_tasks=N_TASKS,
            n_skills=N_SKILLS,
            n_splits=int(n_heads),
            target_modules=targets,
        )
        return get_peft_model(backbone, config)
    return _ours(backbone, int(n_heads), drawn)


def task_ids(variant: str, n_rows: int = N_TASKS) -> "dict[str, Tensor]":
    """Return the argument that routes rows of all tasks in turn, for the models that take it.

    Args:
        variant: As for `add_adapters`; with ``", one task"`` all rows are of one.
        n_rows: How many.
    """
    import torch

    if not variant.startswith(("PEFT Poly", "ours")):
        return {}
    ids = torch.arange(n_rows) % N_TASKS
    return {"task_ids": torch.zeros_like(ids) if ", one task" in variant else ids}


def _ours(backbone: "T5ForConditionalGeneration", n_heads: int, drawn: bool) -> "nn.Module":
    from mttl.routing import PolytroponRouter, RoutingSlot
    from mttl.skills import LoRAInventory, SkilledModel, attach_skills

    slot = RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda in_features, out_features: LoRAInventory(
            in_features, out_features, N_SKILLS, rank=RANK, n_heads=n_heads
        ),
        targets=["attention", "mlp"],
        slot=slot,
    )
    router = PolytroponRouter(len(attachment.groups), N_TASKS, n_heads, N_SKILLS, relaxed=drawn)
    return SkilledModel(backbone, router, slot)

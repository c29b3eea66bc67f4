"""Measure what a frozen backbone in fewer bits saves in memory, and costs in time.

    python scripts/benchmarks/quantised.py [--size llama-1.3b --rows 2 --only nf4]

A step is loss, gradient and AdamW of LoRA skills with Polytropon's router on a frozen decoder-only
model of random weights. The weights are written to a folder in bfloat16, block by block, and every
variant loads that folder as a run does: the memory of loading is not in the peak of a step. The
floor is float32. What is resident includes the libraries.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import Step, parse_arguments, positive, report, run

FLOOR = "float32"
VARIANTS: dict[str, dict[str, str]] = {
    FLOOR: {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "nf4": {"quantize": "nf4"},
    "nf4, bfloat16": {"quantize": "nf4", "dtype": "bfloat16"},
    "int4": {"quantize": "int4"},
}
N_TASKS, N_SKILLS, RANK, ANSWER = 4, 8, 16, 12
SIZES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "llama-1.3b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5504,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "tiny": {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Memory and time of a step, by bits of the base.")
    parser.add_argument("--rows", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--tokens", type=positive, default=80, help="of a row (%(default)s)")
    parser.add_argument("--no-floor", action="store_true", help="leave float32 out")
    settings = parse_arguments(parser, tuple(VARIANTS), argv, sizes=tuple(SIZES))
    if settings.no_floor:
        settings.only = [name for name in settings.only if name != FLOOR]
    with tempfile.TemporaryDirectory() as folder:
        settings.folder = folder
        # In a process of its own: this one stays small.
        writer = multiprocessing.get_context("spawn").Process(
            target=write_base, args=(Path(folder), settings.size)
        )
        writer.start()
        writer.join()
        rows = run(build, settings)
    columns = {
        "base_mib": "MiB of the base",
        "peak_mib": "MiB a step adds",
        "resident_mib": "MiB in all",
    }
    title = f"a training step, {settings.size}, {settings.rows} x {settings.tokens} tokens"
    report(rows, settings, title=title, unit="ms", columns=columns)
    return 0


def write_base(folder: Path, size: str) -> None:
    """Write a model with random weights, a file per block: no more is ever in memory."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES[size], pad_token_id=0, dtype="bfloat16")
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    files: dict[str, list[str]] = {}
    shapes = {name: value.shape for name, value in model.named_parameters()}
    for name in shapes:
        files.setdefault(".".join(name.split(".")[:3]), []).append(name)
    generator = torch.Generator().manual_seed(0)
    index = {}
    for file, names in files.items():
        tensors = {}
        for name in names:
            value = torch.ones(shapes[name])
            if value.ndim > 1:
                value.normal_(std=0.02, generator=generator)
            tensors[name] = value.bfloat16()
            index[name] = f"{file}.safetensors"
        save_file(tensors, folder / f"{file}.safetensors", metadata={"format": "pt"})
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step."""
    import torch

    from mttl.aggregation.packed_weights import is_packed, parts
    from mttl.models.backbone import load_pretrained
    from mttl.models.teacher_forcing import forced_logits
    from mttl.routing import PolytroponRouter, RoutingSlot
    from mttl.skills import LoRAInventory, SkilledModel, attach_skills
    from mttl.training.loss import answer_losses, global_mean

    torch.manual_seed(0)
    given: Any = VARIANTS[variant]
    backbone = load_pretrained(settings.folder, **given).requires_grad_(False).train()
    held = [part for p in backbone.parameters() for part in (parts(p) if is_packed(p) else [p])]
    slot = RoutingSlot()
    attached = attach_skills(
        backbone,
        lambda n, m: LoRAInventory(n, m, N_SKILLS, rank=RANK),
        targets=["attention"],
        slot=slot,
    )
    router = PolytroponRouter(len(attached.groups), N_TASKS, 1, N_SKILLS)
    model = SkilledModel(backbone, router, slot)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    shape = (settings.rows, settings.tokens)
    ids = torch.randint(3, SIZES[settings.size]["vocab_size"], shape)
    labels = ids.masked_fill(torch.arange(settings.tokens) < settings.tokens - ANSWER, -100)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    task_ids = torch.arange(settings.rows) % N_TASKS

    def step() -> None:
        with slot.use(model.route(task_ids)):
            logits, targets, places = forced_logits(backbone, batch)
            loss = global_mean(answer_losses(logits, targets, places), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, {"base_mib": sum(part.nbytes for part in held) / 2**20}


if __name__ == "__main__":
    sys.exit(main())

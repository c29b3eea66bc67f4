"""Measure what it saves a decoder-only model to compute logits of answers only.

    python scripts/benchmarks/answer_logits.py [--dtype bfloat16] [--vocabulary 49152 128256]

A step is loss and gradient of LoRA skills on a frozen random model of SmolLM2-135M's sizes, for 8
rows of 80 tokens whose last 12 are the answer. The floor computes all logits; ``logits_to_keep`` is
the argument of transformers, with the positions as they are in all rows; ``answers only`` is what
the package does: rows are selected into one matrix before the head.
"""

import argparse
import sys
from typing import Any

from _common import SMOLLM2_135M, TINY_LLAMA, Step, parse_arguments, positive, report, run

FLOOR = "all logits"
VARIANTS = (FLOOR, "logits_to_keep", "answers only")
N_ROWS, LENGTH, ANSWER = 8, 80, 12
SIZES: dict[str, dict[str, Any]] = {
    "smollm2-135m": SMOLLM2_135M,
    "tiny": TINY_LLAMA,
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Time and memory of a step, by logits computed.")
    add = parser.add_argument
    add("--vocabulary", type=positive, nargs="+", default=[49152, 128256], help="(%(default)s)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="(%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=tuple(SIZES))
    rows: list[dict[str, Any]] = []
    for n_tokens in settings.vocabulary:
        found = run(build, argparse.Namespace(**vars(settings), n_tokens=n_tokens))
        rows += [{**row, "name": f"{row['name']}, {n_tokens} tokens"} for row in found]
    title = (
        f"a step, {settings.size}, {settings.dtype}, {N_ROWS} x {LENGTH}, {ANSWER} of them answer"
    )
    report(rows, settings, title=title, unit="ms", columns={"peak_mib": "peak MiB"})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mttl.models.teacher_forcing import forced_logits
    from mttl.routing import PolytroponRouter, RoutingSlot
    from mttl.skills import LoRAInventory, SkilledModel, attach_skills
    from mttl.training.loss import answer_losses, global_mean, token_losses

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=settings.n_tokens, tie_word_embeddings=True, **SIZES[settings.size]
    )
    backbone = LlamaForCausalLM(config).to(getattr(torch, settings.dtype)).requires_grad_(False)
    slot = RoutingSlot()
    attached = attach_skills(
        backbone, lambda n, m: LoRAInventory(n, m, 8, rank=16), targets=["attention"], slot=slot
    )
    model = SkilledModel(backbone, PolytroponRouter(len(attached.groups), 4, 1, 8), slot)
    ids = torch.randint(3, settings.n_tokens, (N_ROWS, LENGTH))
    labels = ids.masked_fill(torch.arange(LENGTH) < LENGTH - ANSWER, -100)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    task_ids = torch.arange(N_ROWS) % 4

    def step() -> None:
        with slot.use(model.route(task_ids)):
            if variant == "answers only":
                logits, targets, places = forced_logits(backbone, {**inputs, "labels": labels})
                losses = answer_losses(logits, targets, places)
            elif variant == "logits_to_keep":
                kept = torch.arange(LENGTH - ANSWER - 1, LENGTH - 1)
                logits = backbone(**inputs, use_cache=False, logits_to_keep=kept).logits
                targets = labels[:, -ANSWER:].contiguous()
                losses = token_losses(logits, targets)
            else:
                logits = backbone(**inputs, use_cache=False).logits[:, :-1]
                targets = labels[:, 1:].contiguous()
                losses = token_losses(logits, targets)
        model.zero_grad()
        global_mean(losses, targets).backward()

    return step, {}


if __name__ == "__main__":
    sys.exit(main())

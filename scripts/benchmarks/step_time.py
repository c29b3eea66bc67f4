"""Compare the cost of a training step: frozen, with adapters, and with all parameters trained.

    python scripts/benchmarks/step_time.py [--size tiny] [--rounds 7] [--json FILE]
    python scripts/benchmarks/step_time.py --device cuda --dtype bfloat16

A step is forward, loss, backward and AdamW on the trainable parameters, for 16 examples of 16
tasks, 128 tokens in and 32 out. The floor is the frozen model with gradients of the activations
down to the embeddings: no adapter in the first layer can cost less.
"""

import argparse
import sys

from _common import Step, on_device, parse_arguments, report, run
from _models import N_TASKS, add_adapters, make_backbone, task_ids

FLOOR, FULL = "frozen", "full fine-tuning"
PEERS = ("PEFT LoRA", "PEFT Poly H=1", "PEFT Poly H=4")
ADAPTERS = (*PEERS, "ours H=1", "ours H=4", "ours, one task H=1")
VARIANTS = (FLOOR, *ADAPTERS, FULL)
LENGTH_IN, LENGTH_OUT = 128, 32


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of a training step, by kind of tuning.")
    settings = parse_arguments(parser, VARIANTS, argv, devices=True)
    rows = run(build, settings)
    work = f"{settings.size}, {settings.dtype}, {N_TASKS} x {LENGTH_IN} in, {LENGTH_OUT} out"
    title = f"training step, {work}"
    columns = {"peak_mib": "peak memory, MiB above start", "trainable": "trainable, millions"}
    report(rows, settings, title=title, unit="ms", columns=columns)
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the training step of a variant."""
    import torch

    backbone = make_backbone(settings.size)
    model: torch.nn.Module = backbone
    if variant == FLOOR:
        for stack in (backbone.encoder, backbone.decoder):
            stack.embed_tokens.register_forward_hook(lambda _, __, output: output.requires_grad_())
    elif variant == FULL:
        backbone.requires_grad_(True)
    else:
        model = add_adapters(backbone, variant)
    model.train()
    vocabulary = backbone.config.vocab_size
    batch = {
        "input_ids": torch.randint(2, vocabulary, (N_TASKS, LENGTH_IN)),
        "labels": torch.randint(2, vocabulary, (N_TASKS, LENGTH_OUT)),
        **task_ids(variant),
    }
    model, batch, context = on_device(settings, model, batch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True) if parameters else None

    def step() -> None:
        if optimizer is not None:
            optimizer.zero_grad()
        with context:
            loss = model(**batch).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()

    trainable = sum(parameter.numel() for parameter in parameters)
    return step, {"trainable": trainable / 1e6}


if __name__ == "__main__":
    sys.exit(main())

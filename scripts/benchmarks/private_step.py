"""Compare one step of 16 LoRAs with their own rows against 16 steps of PEFT's LoRA.

    python scripts/benchmarks/private_step.py [--size tiny] [--rounds 7] [--json FILE]

A step is forward, loss, backward and AdamW, for 16 tasks with 8 neighbouring rows each, 64 tokens
in and 16 out; PEFT takes the tasks one after another. The floor is PEFT. ``mixed`` has the same
rows in an order in which no neighbours share a task.
"""

import argparse
import sys

from _common import Step, on_device, parse_arguments, report, run
from _models import N_TASKS, RANK, add_adapters, make_backbone

PEER = "16 steps of PEFT LoRA"
VARIANTS = (PEER, "ours", "ours, mixed")
ROWS, LENGTH_IN, LENGTH_OUT = 8, 64, 16


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of a step of one LoRA per task.")
    settings = parse_arguments(parser, VARIANTS, argv, devices=True)
    rows = run(build, settings)
    title = f"16 LoRAs, {settings.size}, {settings.dtype}, {ROWS} rows each"
    report(rows, settings, title=title, unit="ms", columns={"peak_mib": "peak, MiB"})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the training step of a variant."""
    import torch

    from mttl.routing import PrivateRouter, RoutingSlot
    from mttl.skills import LoRAInventory, SkilledModel, attach_skills

    backbone = make_backbone(settings.size)
    if variant == PEER:
        model = add_adapters(backbone, "PEFT LoRA")
    else:
        slot = RoutingSlot()
        attached = attach_skills(
            backbone,
            lambda n_in, n_out: LoRAInventory(n_in, n_out, N_TASKS, rank=RANK),
            targets=["attention", "mlp"],
            slot=slot,
        )
        router = PrivateRouter(len(attached.groups), N_TASKS, 1, N_TASKS)
        model = SkilledModel(backbone, router, slot)
    model.train()
    vocabulary = backbone.config.vocab_size
    ids = torch.arange(N_TASKS).repeat_interleave(ROWS)
    batch = {
        "task_ids": ids.view(N_TASKS, ROWS).T.reshape(-1) if "mixed" in variant else ids,
        "input_ids": torch.randint(2, vocabulary, (len(ids), LENGTH_IN)),
        "labels": torch.randint(2, vocabulary, (len(ids), LENGTH_OUT)),
    }
    if variant == PEER:
        del batch["task_ids"]
    model, batch, context = on_device(settings, model, batch)
    n_rows = ROWS if variant == PEER else len(ids)
    pieces = {name: values.split(n_rows) for name, values in batch.items()}
    parts = [{name: rows[i] for name, rows in pieces.items()} for i in range(len(ids) // n_rows)]
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step() -> None:
        for part in parts:
            optimizer.zero_grad()
            with context:
                loss = model(**part).loss
            loss.backward()
            optimizer.step()

    return step, {}


if __name__ == "__main__":
    sys.exit(main())

"""Measure training rows per second: padded batches, batches by tokens, and packed rows.

    python scripts/benchmarks/packing.py [--gym DIR] [--size small] [--rows 96] [--json FILE]

A step trains once on all rows of an epoch, the same ones for every variant, with the lengths of a
gym's training rows at four bytes to a token, the longest cut; without --gym they are drawn from the
quantiles of CrossFit's subset. The model is Llama-like with frozen random weights, low-rank skills
on all its layers and a router of tasks. *Rows* are batches of a fixed number of rows in the order
drawn, padded to the longest; *window* sorts the rows of ten batches by length; *budget* cuts by
tokens within such windows, with as many tokens as fixed batches have on average; *packed* puts the
rows of fixed batches into sequences, and *packed budget* fills a budget with them. Padding is that
of all positions; memory is the peak above the start.
"""

import argparse
import sys
from typing import Any

import numpy as np
from _common import SMOLLM2_135M, TINY_LLAMA, Step, as_speed, parse_arguments, positive, report, run

FLOOR = "rows"
VARIANTS = (FLOOR, "window", "budget", "packed", "packed budget")
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "135m": SMOLLM2_135M,
    "tiny": TINY_LLAMA,
}
BATCH, WINDOW, VOCABULARY, N_TASKS, N_SKILLS, RANK = 16, 10, 4096, 32, 8, 16
# Bytes of CrossFit's inputs and answers (the first sample of 50 tasks, 4,813 training rows).
SHARES = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
INPUT_BYTES = (3, 37, 59, 107, 198, 414, 882, 3144, 6559)
ANSWER_BYTES = (1, 4, 4, 7, 10, 22, 51, 145, 291)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Training rows per second by kind of batch.")
    parser.add_argument("--gym", metavar="DIR", help="a gym of TSV files")
    parser.add_argument("--rows", type=positive, default=96, help="of an epoch (%(default)s)")
    parser.add_argument(
        "--longest", type=positive, default=320, help="tokens of a row (%(default)s)"
    )
    settings = parse_arguments(parser, VARIANTS, argv, sizes=tuple(SIZES))
    rows = [as_speed(row, settings.rows) for row in run(build, settings)]
    columns = {"padding": "padding, %", "steps": "batches", "peak_mib": "peak, MiB above start"}
    title = f"training of {settings.rows} rows, size {settings.size}"
    report(rows, settings, title=title, unit="rows a second", columns=columns)
    return 0


def row_sizes(settings: argparse.Namespace) -> np.ndarray:
    """Return the tokens of prompt and answer of every row."""
    rng = np.random.default_rng(0)
    if settings.gym is None:
        kinds = (INPUT_BYTES, ANSWER_BYTES)
        sizes = np.stack([np.interp(rng.random(settings.rows), SHARES, kind) for kind in kinds], 1)
    else:
        from mttl.gym.folder import Gym

        gym = Gym(settings.gym)
        rows = [row for task in gym.tasks() for row in gym.rows(task, "train", 100)]
        some = [rows[i] for i in rng.permutation(len(rows))[: settings.rows]]
        if len(some) < settings.rows:
            raise SystemExit(f"--rows ({settings.rows}): '{settings.gym}' has {len(some)}")
        sizes = np.array([[len(row.input.encode()), len(row.outputs[0].encode())] for row in some])
    tokens = np.ceil(sizes / 4).astype(np.int64).clip(1) + 1
    tokens[:, 1] = tokens[:, 1].clip(max=settings.longest // 4)
    tokens[:, 0] = tokens[:, 0].clip(max=settings.longest - tokens[:, 1])
    return tokens


def epoch(variant: str, sizes: np.ndarray, longest: int) -> tuple[list[list[int]], int | None]:
    """Return the rows of every batch, and the length of packed sequences."""
    from mttl.data.samplers import build_sampler
    from mttl.data.token_sampler import TokenBatchSampler

    totals = sizes.sum(1)
    packed = longest if variant.startswith("packed") else None
    if variant in ("budget", "packed budget"):
        sampler = TokenBatchSampler(
            np.zeros(len(sizes)),
            sizes=totals[:, None],
            token_budget=max(longest, int(BATCH * totals.mean())),
            batch_size=len(sizes),
            packed_length=packed,
            length_window=0 if packed else WINDOW,
        )
    else:
        window = WINDOW if variant == "window" else 0
        sampler = build_sampler(
            *("proportional", np.zeros(len(sizes))),
            batch_size=BATCH,
            seed=0,
            lengths=totals,
            length_window=window,
        )
    return list(sampler), packed


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant, which trains on all rows once."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mttl.data.collate import TrainCollator
    from mttl.data.packing import PackedCollator
    from mttl.data.token_sampler import padding_share
    from mttl.models.teacher_forcing import forced_logits
    from mttl.routing import PolytroponRouter, RoutingSlot
    from mttl.skills import LoRAInventory, SkilledModel, attach_skills
    from mttl.training.loss import answer_losses, global_mean

    torch.manual_seed(0)
    sizes = row_sizes(settings)
    batches, packed = epoch(variant, sizes, settings.longest)
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {
            "input_ids": rng.integers(3, VOCABULARY, prompt).tolist(),
            "labels": rng.integers(3, VOCABULARY, answer).tolist(),
            "task_id": int(rng.integers(N_TASKS)),
        }
        for prompt, answer in sizes
    ]
    collate = TrainCollator(0, N_TASKS, True)
    if packed is not None:
        collate = PackedCollator(0, N_TASKS, True, packed_length=packed)
    model_size: dict[str, Any] = SIZES[settings.size]
    config = LlamaConfig(vocab_size=VOCABULARY, **model_size)
    backbone = LlamaForCausalLM(config).requires_grad_(False)
    slot = RoutingSlot()
    attached = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, N_SKILLS, rank=RANK),
        targets=["attention", "mlp"],
        slot=slot,
    )
    router = PolytroponRouter(len(attached.groups), N_TASKS, 1, N_SKILLS, relaxed=False)
    model = SkilledModel(backbone, router, slot)

    def step() -> float:
        total = 0.0
        for numbers in batches:
            batch = collate([rows[number] for number in numbers])
            with slot.use(model.route(batch["task_ids"], inputs=batch)):
                logits, targets, places = forced_logits(backbone, batch)
            losses = answer_losses(logits, targets, places)
            model.zero_grad()
            global_mean(losses, targets).backward()
            total += float(losses.detach().double().sum())
        return total

    padding = 100 * padding_share(batches, sizes.sum(1, keepdims=True), packed)
    return step, {"padding": padding, "steps": len(batches)}


if __name__ == "__main__":
    sys.exit(main())

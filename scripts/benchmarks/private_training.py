"""Compare training a LoRA for each of T tasks: all in one process, and with PEFT one by one.

    python scripts/benchmarks/private_training.py [--tasks 8 32 100] [--steps 4] [--json FILE]
    python scripts/benchmarks/private_training.py --tasks 8 --steps 30

One process is `router: private`, whose batches hold rows of all tasks; it takes T times as many
steps as each run of PEFT, so that every task has as many rows on both sides, in batches of one
size. Both have rank 16 on all attention and feed-forward layers, AdamW and clipped gradients. Of
the runs of PEFT --sample are made, for tasks that lie evenly among the T; their mean stands for
all. Time is that of processors, start and loading included. The floor of a step is the frozen
backbone with gradients of the activations down to the embeddings. Scores are those of the sampled
tasks, on development rows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from _common import peak_mib, positive
from rich.console import Console
from rich.progress import track
from rich.table import Table

FLOOR, PEER, OURS = "frozen", "PEFT", "private"
RANK, CLIP = 16, 1.0
READ = ("input_ids", "attention_mask", "labels")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of training a LoRA for each of T tasks.")
    add = parser.add_argument
    add("--tasks", nargs="+", type=positive, default=[8, 32, 100], metavar="T")
    add("--steps", type=positive, default=4, help="of each task (%(default)s)")
    add("--rows", type=positive, default=32, help="of a batch (%(default)s)")
    add("--sample", type=positive, default=4, help="runs of PEFT that are made (%(default)s)")
    add("-c", "--config", default="crossfit.yaml+data/grid.yaml", help="(%(default)s)")
    add("-k", "--override", nargs="*", default=[], metavar="section.key=value")
    add("--json", type=Path, metavar="FILE", help="also write the figures here")
    add("--work", nargs=2, metavar=("SIDE", "TASKS"), help=argparse.SUPPRESS)
    settings = parser.parse_args(argv)
    if settings.work:
        side, tasks = settings.work
        print(json.dumps(work(side, tasks.split(","), settings)))
        return 0
    rows = [row for number in settings.tasks for row in measure(number, settings)]
    show(rows)
    if settings.json:
        settings.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(number: int, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each side at a number of tasks."""
    tasks = training_tasks(settings)[:number]
    if len(tasks) < number:
        raise SystemExit(f"--tasks {number}: '{settings.config}' trains on {len(tasks)} tasks")
    sampled = sample_of(tasks, settings.sample)
    # The sides take turns, so that a slow phase of the machine hits all of them.
    jobs = [(PEER, [task]) for task in sampled]
    middle = len(jobs) // 2
    jobs[middle:middle] = [(OURS, tasks), (FLOOR, tasks[:1])]
    given = ["-c", settings.config, "-k", *settings.override, "--steps", str(settings.steps)]
    given += ["--rows", str(settings.rows), "--sample", str(settings.sample)]
    found: dict[str, list[dict[str, Any]]] = {}
    for side, own in track(jobs, f"{number} tasks", console=Console(stderr=True), transient=True):
        command = [sys.executable, __file__, *given, "--work", side, ",".join(own)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found.setdefault(side, []).append(json.loads(done.stdout))
    floor, (ours,), peers = found[FLOOR][0]["step"], found[OURS], found[PEER]
    peer = {name: statistics.fmean(x[name] for x in peers) for name in ("start", "step", "peak")}
    total = number * (peer["start"] + settings.steps * peer["step"])
    scores = [score for one in peers for score in one["scores"].values()]
    own_total = ours["start"] + number * settings.steps * ours["step"]
    common = {"tasks": number, "floor": floor}
    return [
        {
            **common,
            **{"side": PEER, **peer, "total": total, "ratio": 1.0},
            **{"trained": peers[0]["trained"], "score": statistics.fmean(scores)},
        },
        {
            **common,
            **{"side": OURS, **{name: ours[name] for name in peer}, "total": own_total},
            **{"ratio": own_total / total, "trained": ours["trained"]},
            "score": statistics.fmean(ours["scores"][task] for task in sampled),
        },
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="a LoRA for each of T tasks")
    heads = ("T", "side", "start, s", "step / frozen", "all tasks, CPU s", "ratio", "peak MiB")
    for head in (*heads, "trained", "score"):
        table.add_column(head, justify="left" if head == "side" else "right")
    for row in rows:
        table.add_row(
            *(str(row["tasks"]), row["side"], f"{row['start']:.1f}"),
            *(f"{row['step'] / row['floor']:.2f}", f"{row['total']:.0f}", f"{row['ratio']:.2f}"),
            *(f"{row['peak']:.0f}", f"{row['trained']:,}", f"{100 * row['score']:.1f}"),
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def training_tasks(settings: argparse.Namespace) -> list[str]:
    """Return the training tasks of the configuration."""
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym, partition_of

    config = load_config(settings.config, settings.override)
    return list(partition_of(config.data, open_gym(config)).train)


def work(side: str, tasks: list[str], settings: argparse.Namespace) -> dict[str, Any]:
    """Train in this process, and return what it took and its scores."""
    import logging

    import torch
    from datasets import disable_progress_bars

    from mttl.assembly.model import build_model
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym
    from mttl.data.data_module import TextToTextDataModule
    from mttl.merging.fold import strip
    from mttl.metrics.crossfit import score_answers
    from mttl.training.loss import global_mean
    from mttl.training.optim import build_optimizer
    from mttl.training.text_to_text import TextToTextModule

    disable_progress_bars()
    logging.disable()
    torch.set_num_threads(1)
    given = [*settings.override, f"data.batch_size={settings.rows}", f"skills.rank={RANK}"]
    config = load_config(f"{settings.config}+router/private.yaml", given)
    built, gym = build_model(config, tasks), open_gym(config)
    data = TextToTextDataModule(gym, tasks, built.tokenizer, config.data, decoder_only=False)
    metrics = {task: gym.metric(task) for task in tasks}
    model: Any = built.model
    module = TextToTextModule(model, built.tokenizer, metrics, config.optim)
    if side != OURS:
        model = strip(built.model).backbone.requires_grad_(False)
    if side == PEER:
        from peft import LoraConfig, get_peft_model

        names = ["q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"]
        lora = LoraConfig(r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=names)
        model = get_peft_model(model, lora)
    elif side == FLOOR:
        for stack in (model.encoder, model.decoder):
            stack.embed_tokens.register_forward_hook(lambda _, __, out: out.requires_grad_())
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer: Any = None
    if side == OURS:
        optimizer = build_optimizer(config.optim, model)
    elif parameters:
        optim: Any = config.optim
        rates = {"lr": optim.lr, "betas": optim.betas, "weight_decay": optim.weight_decay}
        optimizer = torch.optim.AdamW(parameters, fused=True, **rates)
    n_steps = settings.steps * len(tasks)
    model.train()
    started = time.process_time()
    for batch in islice(chain.from_iterable(repeat(data.train_dataloader())), n_steps):
        if side == OURS:
            losses, labels, _ = module.training_losses(batch)
            loss = global_mean(losses, labels)
        else:
            loss = model(**{name: batch[name] for name in READ}).loss
        loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad()
    ended, peak = time.process_time(), peak_mib()
    model.eval()
    scores = {}
    for task in sample_of(tasks, settings.sample) if side != FLOOR else ():
        said: list[str] = []
        right: list[list[str]] = []
        rows = TextToTextDataModule(gym, [task], built.tokenizer, config.data, decoder_only=False)
        for batch in rows.evaluation_dataloader("dev"):
            asked = dict(batch["generation_inputs"])
            if side == OURS:
                asked["task_ids"] = batch["task_ids"] + tasks.index(task)
            ids = model.generate(**asked, max_new_tokens=config.data.max_output_length)
            said += built.tokenizer.batch_decode(ids, skip_special_tokens=True)
            right += batch["references"]
        scores[task] = score_answers(metrics[task], said, right)
    return {
        **{"start": started, "step": (ended - started) / n_steps, "peak": peak},
        **{"trained": sum(value.numel() for value in parameters), "scores": scores},
    }


def sample_of(tasks: list[str], number: int) -> list[str]:
    """Return tasks that lie evenly among all."""
    return tasks[:: max(1, len(tasks) // number)][:number]


if __name__ == "__main__":
    sys.exit(main())

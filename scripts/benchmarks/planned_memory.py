"""Hold the memory planner against what training and generation really take.

    python scripts/benchmarks/planned_memory.py [--only "t5, float32"] [--json FILE]

Each setting runs in a process of its own: a small model is trained first, so that all libraries are
loaded, and the memory at that moment is the floor. Then the setting's model, of random weights, is
built, trained for two steps by Lightning or asked for answers, and the largest resident memory of
the process above the floor stands beside the plan, which is made from the model's config.json.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _common import peak_mib
from rich.console import Console
from rich.table import Table

# Freed memory goes back to the system at once, so that the peak is that of what lives.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
T5 = {"d_model": 384, "d_kv": 64, "num_heads": 6, "d_ff": 1024, "num_layers": 4}
T5 |= {"vocab_size": 32128, "dropout_rate": 0.0, "decoder_start_token_id": 0}
LLAMA = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6}
LLAMA |= {"num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 32000}
LARGE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8}
LARGE |= {"num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000}
SIZES = ["data.batch_size=8", "data.max_input_length=128", "data.max_output_length=32"]
SHORT = ["data.batch_size=4", "data.max_input_length=64", "data.max_output_length=16"]
# Model type, its sizes, and settings beside those of crossfit.yaml.
SETTINGS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "t5, float32": ("t5", T5, SIZES),
    "t5, checkpointing": ("t5", T5, [*SIZES, "backbone.gradient_checkpointing=true"]),
    "t5, trained, accumulating": (
        *("t5", T5),
        [*SHORT, "backbone.train=true", "trainer.accumulate_grad_batches=2"],
    ),
    "llama, float32": ("llama", LLAMA, SIZES),
    "llama, bfloat16 base, checkpointing": (
        *("llama", LARGE),
        [*SHORT, "backbone.gradient_checkpointing=true", "backbone.dtype=bfloat16"],
    ),
    "llama, answers of 4 beams": (
        *("llama", LLAMA),
        ["data.eval_batch_size=8", *SHORT, "generation.num_beams=4"],
    ),
}
TASKS = ["a", "b", "c", "d"]
STEPS = 2


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Planned and measured peaks of memory.")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, metavar="SETTING", default=SETTINGS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(argv)
    os.environ.update(RETURN_MEMORY, OMP_NUM_THREADS="1")
    rows = [{"setting": name, **_in_a_process(name)} for name in options.only]
    table = Table("setting", title="peak of memory above that of the libraries, MiB")
    for heading in ("parameters, M", "libraries", "measured", "planned", "planned / measured"):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio = row["planned"] / row["measured"]
        figures = (row["parameters"] / 1e6, row["floor"], row["measured"], row["planned"])
        table.add_row(row["setting"], *(f"{figure:.0f}" for figure in figures), f"{ratio:.3f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _in_a_process(name: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(theirs, name))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise RuntimeError(f"the process of '{name}' died") from None
    finally:
        process.join()


def _measure(connection: Connection, name: str) -> None:
    import torch
    from transformers import AutoConfig

    from mttl.config.load import load_config
    from mttl.planning.memory_plan import needs_of

    torch.manual_seed(0)
    model_type, sizes, settings = SETTINGS[name]
    answers = "answers" in name
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(model_type, **sizes).save_pretrained(folder)
        given = [f"backbone.name={folder}", "trainer.accelerator=cpu", "run.name=none", *settings]
        config = load_config("crossfit.yaml", given)
        tiny = {"t5": {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 32, "num_layers": 1}}
        few = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
        few |= {"num_attention_heads": 2, "num_key_value_heads": 2}
        _run(config, model_type, {**sizes, **tiny.get(model_type, few), "vocab_size": 384}, answers)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _forget_peak()
        floor = peak_mib()
        parameters = _run(config, model_type, sizes, answers)
        measured = peak_mib() - floor
        needs = needs_of(config, TASKS)
    if answers:
        planned = sum(needs.weights.values()) + sum(needs.answering.values())
    else:
        planned = sum(needs.plan("auto", 1).training.values())
    figures = {"parameters": parameters, "floor": floor, "measured": measured}
    connection.send({**figures, "planned": planned / 2**20})


def _run(config: Any, model_type: str, sizes: dict[str, Any], answers: bool) -> int:
    """Build a model, forget the peak of building it, and train it or ask it."""
    import pytorch_lightning as pl
    import torch
    from torch.utils.data import DataLoader
    from transformers import ByT5Tokenizer

    from mttl.build.model import assemble
    from mttl.models.backbone import build_random, is_decoder_only
    from mttl.training.text_to_text import TextToTextModule

    network = build_random(model_type, sizes).to(getattr(torch, config.backbone.dtype))
    network.requires_grad_(bool(config.backbone.train))
    model, *_ = assemble(network, config, TASKS)
    if config.backbone.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    data = config.data
    n_in, n_out, n_rows = data.max_input_length, data.max_output_length, data.batch_size
    gc.collect()
    _forget_peak()
    if answers:
        model.eval()
        n_rows = data.eval_batch_size
        ids = torch.randint(3, 300, (n_rows, n_in))
        search = {"num_beams": config.generation.num_beams, "do_sample": False, "pad_token_id": 0}
        search |= {"max_new_tokens": n_out, "min_new_tokens": n_out, "eos_token_id": 1}
        mask = torch.ones_like(ids)
        mask[0, 0] = 0
        tasks = torch.arange(n_rows) % len(TASKS)
        model.generate(tasks, input_ids=ids, attention_mask=mask, **search)
        return n_parameters
    decoder_only = is_decoder_only(network)
    ids = torch.randint(3, 300, (n_rows, n_in + n_out if decoder_only else n_in))
    labels = torch.randint(3, 300, (n_rows, n_out))
    if decoder_only:
        labels = torch.cat([torch.full((n_rows, n_in), -100), labels], 1)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    tasks = torch.arange(n_rows) % len(TASKS)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, "task_ids": tasks}
    module = TextToTextModule(model, ByT5Tokenizer(), dict.fromkeys(TASKS, "EM"), config.optim)
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        precision=config.trainer.precision,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_val=config.trainer.gradient_clip_val,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches: Any = [batch] * STEPS * config.trainer.accumulate_grad_batches
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return n_parameters


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())

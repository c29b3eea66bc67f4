"""Compare how fast rows are trained on, from a gym's files to the optimizer's step.

    python scripts/benchmarks/end_to_end.py [--models t5 llama] [--data ../shared/crossfit]

All sides train adapters of rank 16 on all attention and feed-forward layers of one frozen model
with random weights, of T5-small's or SmolLM2-135M's sizes, on the same CrossFit rows in the same
number of batches, with AdamW and clipped gradients. Peers are trained by transformers' `Trainer`
with dynamic padding, rows as drawn or grouped by length, and by a plain loop; ours is what
`mttl train -c crossfit.yaml` does, without its checkpoints, and with a budget of tokens (few long
rows or many short ones in a batch). Text is cut by a byte-level BPE of
8,000 entries that was learned from the rows. A round is one training, its start included; figures
are rows per second of processor time, and the floor is PEFT's LoRA under the `Trainer`.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import (
    SMOLLM2_135M,
    USER_MISTAKE,
    Step,
    as_speed,
    parse_arguments,
    positive,
    report,
    run,
)

if TYPE_CHECKING:  # the parent process of a benchmark never loads these
    from torch import nn

    from mttl.config.schema import Config
    from mttl.data.data_module import TextToTextDataModule

TRAINER, BY_LENGTH, LOOP = "PEFT LoRA, Trainer", "PEFT LoRA, Trainer by length", "PEFT LoRA, loop"
POLY, OURS, AS_DRAWN = "PEFT Poly, Trainer", "ours", "ours, rows as drawn"
BY_TOKENS = "ours, by tokens"
VARIANTS = (TRAINER, BY_LENGTH, LOOP, POLY, OURS, AS_DRAWN, BY_TOKENS)
RANK, N_SKILLS, LR, CLIP = 16, 8, 1e-4, 1.0
ROOT = Path(__file__).parents[2]
N_TOKENS = 8000
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {
        "t5": {"vocab_size": 32128, "dropout_rate": 0.0},
        "llama": {
            "vocab_size": 49152,
            **SMOLLM2_135M,
            "tie_word_embeddings": True,
        },
    },
    "tiny": {
        "t5": {"vocab_size": N_TOKENS, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64},
        "llama": {
            "vocab_size": N_TOKENS,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
    },
}
TARGETS = {
    "t5": ["q", "k", "v", "o", "wi", "wo"],
    "llama": [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")],
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    beside = Path(os.environ.get("MTTL_SHARED", ROOT.parent / "shared")) / "crossfit"
    parser = argparse.ArgumentParser(description="Rows per second of whole trainings.")
    add = parser.add_argument
    add("--models", nargs="+", choices=TARGETS, default=list(TARGETS), help="(%(default)s)")
    add("--data", type=Path, default=beside, help="folder of CrossFit's files (%(default)s)")
    add("--batches", type=positive, default=12, help="of a training (%(default)s)")
    add("--batch-size", type=positive, default=8, help="rows of a batch (%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=tuple(SIZES))
    if not settings.data.is_dir():
        print(
            f"no CrossFit files at '{settings.data}': name their folder with --data, or build them "
            "with mttl build",
            file=sys.stderr,
        )
        return USER_MISTAKE
    n_rows = settings.batches * settings.batch_size
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        learn_tokenizer(settings.data, Path(folder))
        for model in settings.models:
            case = argparse.Namespace(**vars(settings), model=model, folder=folder)
            found = [as_speed(row, n_rows) for row in run(build, case)]
            rows += [{**row, "name": f"{model}: {row['name']}"} for row in found]
    title = f"training, {settings.size}, {settings.batches} batches of {settings.batch_size} rows"
    report(rows, settings, title=title, unit="rows/s", columns={"peak_mib": "peak MiB"})
    return 0


def learn_tokenizer(data: Path, folder: Path) -> None:
    """Learn a byte-level BPE from the training rows and write it into a folder."""
    from tokenizers import ByteLevelBPETokenizer

    files = sorted(str(path) for path in data.glob("*/*_100_train.tsv"))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(
        files, vocab_size=N_TOKENS, special_tokens=["<pad>", "</s>"], show_progress=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the training of a variant."""
    import torch
    from datasets import disable_progress_bars

    torch.manual_seed(0)
    disable_progress_bars()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    n_rows = settings.batches * settings.batch_size
    make = _ours if variant in (OURS, AS_DRAWN, BY_TOKENS) else _peer
    return make(variant, configuration(variant, settings), n_rows), {}


def configuration(variant: str, settings: argparse.Namespace) -> "Config":
    """Return our configuration of the training; peers take model and rows from it."""
    from mttl.config.load import load_config

    n_in, n_out = 256 if settings.size == "small" else 32, 32
    size, batch = settings.batch_size, [f"data.batch_size={settings.batch_size}"]
    if variant == BY_TOKENS:  # the tokens of half as many of the longest rows
        batch = [f"data.batch_size={4 * size}", f"data.token_budget={size * (n_in + n_out) // 2}"]
    return load_config(
        "crossfit.yaml",
        [
            f"run.dir={settings.folder}",
            f"run.name={variant}",
            f"data.dir={settings.data}",
            "data.partition=auto",
            "data.validation=none",
            *batch,
            f"data.length_window={0 if variant == AS_DRAWN else settings.batches}",
            f"data.max_input_length={n_in}",
            f"data.max_output_length={n_out}",
            "backbone.kind=random",
            f"backbone.model_type={settings.model}",
            f"backbone.config={json.dumps(SIZES[settings.size][settings.model])}",
            f"backbone.tokenizer={settings.folder}",
            "backbone.train=false",
            f"skills.rank={RANK}",
            f"skills.n_skills={N_SKILLS}",
            f"optim.lr={LR}",
            f"trainer.gradient_clip_val={CLIP}",
            "trainer.max_epochs=1",
            "trainer.max_steps=-1",
            "trainer.accelerator=cpu",
        ],
    )


def data_of(config: "Config", n_rows: int) -> "TextToTextDataModule":
    """Return the batches of the rows that all sides train on."""
    from mttl.assembly.build_backbone import build_tokenizer
    from mttl.data.data_module import TextToTextDataModule
    from mttl.tasks.folder import Gym

    section: Any = config.backbone
    gym = Gym(str(config.data.dir))
    return TextToTextDataModule(
        gym,
        [task for task in gym.tasks() if config.data.samples[0] in gym.samples(task)],
        build_tokenizer(section),
        config.data,
        decoder_only=section.model_type == "llama",
        n_examples=n_rows,
    )


def _ours(variant: str, config: "Config", n_rows: int) -> Step:
    from pytorch_lightning.callbacks import Checkpoint

    from mttl.assembly.model import build_model
    from mttl.assembly.trainer import build_trainer
    from mttl.checkpoints.run_folder import RunFolder
    from mttl.training.callbacks import GracefulStop
    from mttl.training.text_to_text import TextToTextModule

    data = data_of(config, n_rows)
    built = build_model(config, data.tasks)
    metrics = dict.fromkeys(data.tasks, "EM")
    module = TextToTextModule(built.model, built.tokenizer, metrics, config.optim)
    folder = RunFolder(Path(config.run.dir) / config.run.name)

    def step() -> None:
        trainer: Any = build_trainer(config, folder, built)
        unwanted = (Checkpoint, GracefulStop)  # a file per thousand steps, not per twelve
        trainer.callbacks = [one for one in trainer.callbacks if not isinstance(one, unwanted)]
        trainer.fit(module, datamodule=data)

    return step


def _peer(variant: str, config: "Config", n_rows: int) -> Step:
    """Train PEFT's adapters on the rows of our data module."""
    import torch
    from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments

    data = data_of(config, n_rows)
    model = _adapters(variant, config, len(data.tasks))
    rows: Any = list(peer_rows(data, variant))
    collate = DataCollatorForSeq2Seq(data.tokenizer)

    def loop() -> None:
        model.train()
        parameters = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=LR, fused=True)
        size = config.data.batch_size
        for batch in torch.utils.data.DataLoader(rows, size, shuffle=True, collate_fn=collate):
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad()

    arguments = TrainingArguments(
        config.run.dir,
        per_device_train_batch_size=config.data.batch_size,
        num_train_epochs=1,
        learning_rate=LR,
        max_grad_norm=CLIP,
        train_sampling_strategy="group_by_length" if variant == BY_LENGTH else "random",
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )

    def train() -> None:
        trainer = Trainer(model, arguments, data_collator=collate, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    return loop if variant == LOOP else train


def _adapters(variant: str, config: "Config", n_tasks: int) -> "nn.Module":
    from peft import LoraConfig, PolyConfig, get_peft_model

    from mttl.assembly.build_backbone import build_backbone

    section: Any = config.backbone
    backbone, kind = build_backbone(section), section.model_type
    shared = {
        "task_type": "SEQ_2_SEQ_LM" if kind == "t5" else "CAUSAL_LM",
        "r": RANK,
        "target_modules": TARGETS[kind],
    }
    if variant == POLY:
        poly = PolyConfig(n_tasks=n_tasks, n_skills=N_SKILLS, n_splits=1, **shared)
        return get_peft_model(backbone, poly)
    return get_peft_model(backbone, LoraConfig(lora_alpha=RANK, lora_dropout=0.0, **shared))


def peer_rows(data: "TextToTextDataModule", variant: str) -> Iterator[dict[str, Any]]:
    """Return prompts and answers as transformers' models take them."""
    rows: Any = data.train_rows
    for row in rows:
        prompt, answer = row["input_ids"], row["labels"]
        if data.decoder_only:
            answer = [-100] * len(prompt) + answer
            prompt = prompt + row["labels"]
        task = {"task_ids": row["task_id"]} if variant == POLY else {}
        yield {"input_ids": prompt, "labels": answer, **task}


if __name__ == "__main__":
    sys.exit(main())

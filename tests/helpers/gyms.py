"""Small gyms of string tasks on disk, and configurations and runs of a tiny model over them."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.command import train
from mttl.io import yaml12
from mttl.models.backbone import build_random, scale_initial_weights

# The task `number` is scored by a correlation: undefined for a model that writes no number.
TASKS: dict[str, tuple[str, Callable[[str], str]]] = {
    "copy": ("EM", lambda word: word),
    "reverse": ("ACC", lambda word: word[::-1]),
    "number": ("Pearson-Correlation", lambda word: str(len(word))),
}

TINY_T5 = {
    "kind": "random",
    "model_type": "t5",
    "tokenizer": "byte",
    "config": {
        "vocab_size": 384,
        "d_model": 16,
        "d_kv": 4,
        "num_heads": 2,
        "d_ff": 32,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "dropout_rate": 0.1,
    },
}
TINY_LLAMA = {
    "kind": "random",
    "model_type": "llama",
    "tokenizer": "byte",
    "config": {
        "vocab_size": 384,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    },
}


def write_gym(
    root: Path,
    tasks: Mapping[str, tuple[str, Callable[[str], str]]] = TASKS,
    *,
    sizes: tuple[int, int, int] = (16, 5, 3),
    samples: Sequence[int] = (100,),
    letters: str = "abc",
    lengths: tuple[int, int] = (1, 4),
    seed: int = 0,
    unseen: Sequence[str] = (),
    **columns: str,
) -> Path:
    """Write tasks on random words, TASKS.csv and partition.json; return the folder.

    Tasks that are unseen are on the partition's side of tests; ``description="what {} does"`` is a
    further column of the table.
    """
    rng = random.Random(seed)
    for task, (_, answer) in tasks.items():
        (root / task).mkdir(parents=True)
        for sample in samples:
            for split, size in zip(("train", "dev", "test"), sizes, strict=True):
                words = [
                    "".join(rng.choices(letters, k=rng.randint(*lengths))) for _ in range(size)
                ]
                lines = [f"{word}\t{answer(word)}\n" for word in words]
                path = root / task / f"{task}_{sizes[0]}_{sample}_{split}.tsv"
                path.write_text("".join(lines), encoding="utf-8")
    rows = [("task", "metric", *columns)]
    for task, (metric, _) in tasks.items():
        rows.append((task, metric, *(value.format(task) for value in columns.values())))
    (root / "TASKS.csv").write_text("".join(f"{','.join(row)}\n" for row in rows), "utf-8")
    seen = [task for task in tasks if task not in unseen]
    partition = {"train": seen, "dev": [], "test": list(unseen)}
    (root / "partition.json").write_text(json.dumps(partition), encoding="utf-8")
    return root


def write_config(path: Path, gym: Path, **sections: Mapping[str, Any]) -> Path:
    """Write the configuration of a run of twelve steps and three validations; return its path."""
    config: dict[str, Any] = {
        "run": {"dir": str(path.parent / "runs")},
        "data": {
            "dir": str(gym),
            "partition": str(gym / "partition.json"),
            "batch_size": 8,
            "eval_batch_size": 16,
            "max_input_length": 24,
            "max_output_length": 6,
        },
        "backbone": {} if "kind" in sections.get("backbone", {}) else TINY_T5,
        "skills": {"kind": "lora", "n_skills": 3, "rank": 2, "targets": ["attention"]},
        "router": {"kind": "polytropon"},
        "optim": {"kind": "adamw", "lr": 1e-2, "router_lr": 5e-2},
        "trainer": {
            "max_steps": 12,
            "val_check_interval": 4,
            "log_every_n_steps": 1,
            "accelerator": "cpu",
            "devices": 1,
        },
    }
    for name, settings in sections.items():
        config[name] = {**config.get(name, {}), **settings}
    path.write_text(yaml12.dump(config), encoding="utf-8")
    return path


def store_backbone(folder: Path, backbone: Mapping[str, Any] = TINY_T5) -> dict[str, Any]:
    """Write a model of random weights, and return the section that names it."""
    model = build_random(backbone["model_type"], backbone["config"])
    scale_initial_weights(model, backbone.get("initial_scale", {}))
    model.save_pretrained(folder)
    return {"kind": "pretrained", "name": str(folder), "tokenizer": "byte"}


def make_run(
    folder: Path, *settings: str, gym: Path | None = None, fragment: str = "", **sections: Any
) -> Path:
    """Train for a step without scores, on a gym beside the run if none is given; return the run."""
    config = write_config(folder / "tiny.yaml", gym or write_gym(folder / "gym"), **sections)
    short = ("trainer.max_steps=1", "data.validation=none", "data.evaluate=[]")
    return train(f"{config}{fragment}", "source", *short, *settings).path

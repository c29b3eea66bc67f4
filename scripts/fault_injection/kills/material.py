"""What the commands of the test work on: a gym, models and raw records, all tiny."""

import json
import random
from pathlib import Path
from typing import Any

import yaml

LEVELS = ["GoToObjS4", "GoToRedBallNoDists"]
# The task of numbers is scored by a correlation.
TASKS = {
    "copy": ("EM", lambda word: word),
    "reverse": ("ACC", lambda word: word[::-1]),
    "number": ("Pearson-Correlation", lambda word: str(len(word))),
    "twice": ("EM", lambda word: word + word),
    "first": ("EM", lambda word: word[0]),
}
SEEN = ["copy", "reverse", "number"]
TINY_T5 = {
    **{"vocab_size": 384, "d_model": 16, "d_kv": 4, "num_heads": 2, "d_ff": 32},
    **{"num_layers": 1, "num_decoder_layers": 1, "dropout_rate": 0.1},
}
TEXT: dict[str, Any] = {
    "run": {"dir": "runs"},
    "data": {
        **{"dir": "gym", "partition": "gym/partition.json", "batch_size": 8},
        **{"eval_batch_size": 8, "max_input_length": 24, "max_output_length": 6},
    },
    "backbone": {**{"kind": "random", "model_type": "t5", "tokenizer": "byte", "config": TINY_T5}},
    "skills": {"kind": "lora", "n_skills": 3, "rank": 2, "targets": ["attention"]},
    "router": {"kind": "polytropon"},
    "optim": {"kind": "adamw", "lr": 1e-2, "router_lr": 5e-2},
    "adapt": {"max_steps": 4, "eval_every": 2, "batch_size": 4},
    "trainer": {
        **{"max_steps": 12, "val_check_interval": 4, "log_every_n_steps": 1},
        **{"accelerator": "cpu", "devices": 1},
    },
}
EXPERTS: dict[str, Any] = {
    "skills": {"kind": "none"},
    "router": {"kind": "none"},
    "moe": {
        "router": {"kind": "top_k", "top_k": 2, "normalise": True},
        "experts": {"kind": "lora", "rank": 2},
        **{"n_experts": 3, "targets": ["attention"], "balance": {"switch": 1e-2}},
    },
}
POLICIES: dict[str, Any] = {
    "run": {"dir": "runs"},
    "rl": {
        **{"levels": LEVELS, "n_slots": 3, "window": 5, "evaluation": {"n_episodes": 2}},
        "policy": {"n_channels": 8, "memory_size": 8, "instruction_size": 8},
        "ppo": {"n_steps": 8, "recurrence": 4, "n_epochs": 2, "n_minibatches": 2},
        "imitation": {"batch_size": 2},
    },
    "skills": {"kind": "sparse", "n_skills": 3, "sparsity": 0.5},
    "router": {"kind": "polytropon", "granularity": "model", "relaxed": False},
    "optim": {
        **{"kind": "adam", "lr": 1e-3, "router_lr": 1e-2},
        **{"schedule": "constant", "warmup": 0, "weight_decay": 0.0},
    },
    "adapt": {"levels": ["GoToObjS6"], "n_updates": 2, "seeds": [13, 14]},
    "trainer": {**{"max_epochs": 24, "gradient_clip_val": 0.5, "accelerator": "cpu", "devices": 1}},
}
OWN_TASK = {
    **{"kind": "classification", "k": 2, "input": "{text}", "output": "{label|name}"},
    **{"labels": ["red", "green", "blue"], "metric": "ACC"},
    **{"category": "classification/colour", "description": "Name a colour."},
}


def write_material(folder: Path) -> None:
    """Write all that is not made by a command of the project."""
    _write_gym(folder / "gym")
    sides = {"train": SEEN, "dev": ["twice"], "test": ["first"]}
    _write(folder / "gym" / "partition.json", json.dumps(sides))
    _write(folder / "tiny.yaml", yaml.safe_dump(TEXT))
    _write(folder / "experts.yaml", yaml.safe_dump(EXPERTS))
    _write(folder / "policies.yaml", yaml.safe_dump(POLICIES))
    _write(folder / "text.txt", "one line\n\nanother line of text\nnaïve\n" * 3)
    questions = [{"task": task, "input": "abc"[: n % 3 + 1]} for n in range(20) for task in SEEN]
    _write(folder / "questions.jsonl", "".join(f"{json.dumps(row)}\n" for row in questions))
    names = [f"colours{number}" for number in range(4)]
    tasks = {name: {**OWN_TASK, "source": {"train": f"{name}.jsonl"}} for name in names}
    for name in names:
        rows = [json.dumps({"text": f"text {i} of {name}", "label": i % 3}) for i in range(60)]
        _write(folder / f"{name}.jsonl", "\n".join(rows) + "\n")
    _write(folder / "tasks.yaml", yaml.safe_dump({"tasks": tasks}))
    _write_models(folder)


def _write_gym(folder: Path) -> None:
    rng = random.Random(0)
    for task, (_, answer) in TASKS.items():
        for sample in (13, 100):
            for split, size in (("train", 16), ("dev", 5), ("test", 3)):
                words = ["".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(size)]
                lines = "".join(f"{word}\t{answer(word)}\n" for word in words)
                _write(folder / task / f"{task}_16_{sample}_{split}.tsv", lines)
    rows = "".join(f"{task},{metric}\n" for task, (metric, _) in TASKS.items())
    _write(folder / "TASKS.csv", f"task,metric\n{rows}")


def _write_models(folder: Path) -> None:
    import torch

    from mttl.models.backbone import build_random

    for seed, name in enumerate(("base", "expert")):
        torch.manual_seed(seed)
        build_random("t5", TINY_T5).save_pretrained(folder / name, max_shard_size="20KB")
    recipe: dict[str, Any] = {
        "base": {"model": "base"},
        "models": [{"model": "expert", "role": "expert", "weight": 0.5}],
        "method": {"kind": "arithmetic"},
    }
    _write(folder / "recipe.yaml", yaml.safe_dump(recipe))
    del recipe["models"][0]["weight"]
    methods = {"sum": {"method": recipe.pop("method"), "weights": [0.5, 1.0]}}
    asked = {"run": "runs/source", "task": "copy", "metrics": ["exact", "f1"]}
    _write(folder / "sweep.yaml", yaml.safe_dump({**recipe, "methods": methods, **asked}))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

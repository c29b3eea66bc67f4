"""Sound files of every kind that the project reads, as small as they can be."""

import contextlib
import gzip
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, ByT5Tokenizer

from envs.demonstrations import Demonstration, save_demonstrations
from mttl.adaptation.new_tasks import adapt_to
from mttl.adaptation.plan import FewShotJob, FewShotResult, Results
from mttl.adaptation.search import note_values
from mttl.commands import ablate, train
from mttl.io import yaml12
from mttl.library.library_folder import Member, add_members
from mttl.library.member_card import BaseModel, MemberCard
from mttl.merging.low_rank_factors import LowRank
from mttl.peft_format.peft_folder import PREFIX
from mttl.sparse.loop import save_state
from mttl.sparse.skill_file import SparseSkill
from mttl.tasks.rows import JSON_LINES, TSV, line_of

TASKS = ("copy", "reverse", "number")
LEVELS = ["GoToObjS4", "GoToRedBallNoDists"]
JOBS = [FewShotJob("copy", 100, 13), FewShotJob("reverse", 100, 13)]
T5 = {
    "vocab_size": 384,
    "d_model": 16,
    "d_kv": 4,
    "num_heads": 2,
    "d_ff": 32,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "dropout_rate": 0.1,
}
TRAINER = {"accelerator": "cpu", "devices": 1}


def write_samples(folder: Path) -> None:
    """Write the folders that `fuzzing.areas` names.

    Args:
        folder: An empty one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _gym(folder / "gym")
        _configurations(folder / "config", folder / "gym")
        _text_run(folder)
        _policy_run(folder)
        _models(folder / "models")
        _adapter(folder / "peft")
    _library(folder / "library")
    _tasks(folder / "tasks")
    _results(folder / "results")
    _policy_files(folder)
    _sparse(folder)


def _gym(gym: Path) -> None:
    rng = random.Random(0)
    for task in TASKS:
        (gym / task).mkdir(parents=True)
        for split, size in (("train", 8), ("dev", 4), ("test", 2)):
            words = ["".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(size)]
            ending = JSON_LINES if split == "dev" else TSV
            text = "".join(line_of(ending, word, [str(len(word))]) for word in words)
            (gym / task / f"{task}_8_100_{split}{ending}").write_text(text)
    rows = "".join(f"{task},ACC,strings,about {task}\n" for task in TASKS)
    (gym / "TASKS.csv").write_text("task,metric,category,description\n" + rows)
    (gym / "partition.json").write_text(json.dumps({"train": list(TASKS), "dev": [], "test": []}))
    matrix = "task,first,second\ncopy,1,0\nreverse,0.5,0.5\nnumber,0,1\n"
    (gym / "expert.csv").write_text(matrix)


def text_settings(gym: Path, runs: Path) -> dict[str, Any]:
    """Return the configuration of a run of text tasks."""
    return {
        "run": {"dir": str(runs)},
        "data": {
            "dir": str(gym),
            "partition": str(gym / "partition.json"),
            "batch_size": 8,
            "eval_batch_size": 8,
            "max_input_length": 16,
            "max_output_length": 4,
            "evaluate": ["dev"],
        },
        "backbone": {"kind": "random", "model_type": "t5", "tokenizer": "byte", "config": T5},
        "skills": {"kind": "lora", "n_skills": 2, "rank": 2, "targets": ["attention"]},
        "router": {"kind": "polytropon"},
        "optim": {"kind": "adamw", "lr": 1e-2, "router_lr": 5e-2},
        "trainer": {"max_steps": 4, "val_check_interval": 2, "log_every_n_steps": 1, **TRAINER},
    }


def policy_settings(runs: Path) -> dict[str, Any]:
    """Return the configuration of a run of policies."""
    return {
        "run": {"dir": str(runs)},
        "rl": {
            "levels": LEVELS,
            "n_slots": 2,
            "policy": {"n_channels": 8, "memory_size": 8, "instruction_size": 8},
            "ppo": {"n_steps": 4, "recurrence": 4, "n_epochs": 1, "n_minibatches": 2},
            "window": 5,
            "evaluation": {"n_episodes": 2},
        },
        "skills": {"kind": "sparse", "n_skills": 2, "sparsity": 0.5},
        "router": {"kind": "polytropon", "granularity": "model", "relaxed": False},
        "optim": {
            **{"kind": "adam", "lr": 1e-3, "router_lr": 1e-2},
            **{"schedule": "constant", "warmup": 0, "weight_decay": 0.0},
        },
        "trainer": {"max_epochs": 2, "gradient_clip_val": 0.5, **TRAINER},
    }


def _configurations(folder: Path, gym: Path) -> None:
    folder.mkdir()
    settings = text_settings(gym, Path("runs"))
    fragment = {"skills": settings.pop("skills"), "optim": {"lr": 0.5}}
    (folder / "run.yaml").write_text(yaml12.dump(settings))
    (folder / "fragment.yaml").write_text(yaml12.dump(fragment))
    (folder / "policies.yaml").write_text(yaml12.dump(policy_settings(Path("runs"))))
    recipe = {
        "base": {"model": "models/base"},
        "models": [
            {"model": "models/good", "weight": 0.5},
            {"model": "models/base", "role": "anti_expert", "weight": 0.1},
        ],
        "method": {"kind": "ties", "density": 0.5, "scale": 1.0},
        "out": "merged",
    }
    (folder / "recipe.yaml").write_text(yaml12.dump(recipe))


def _text_run(folder: Path) -> None:
    settings = text_settings(folder / "gym", folder)
    (folder / "text.yaml").write_text(yaml12.dump(settings))
    train.main(["-c", str(folder / "text.yaml"), "-k", "run.name=run"])
    run = folder / "run"
    words = [("ab", "2"), ("c", "1"), ("cab", "3"), ("b", "1")]
    adapt_to(run, words, task="new", mode="router_only", max_steps=1).save(run / "models" / "new")
    shutil.copytree(run / "models" / "new", run / "adapt-all" / "models" / "new")
    ablate.main([str(run), "--loss", "--rows", "1"])
    rows = [f"{word}\t{answer}\t{task}\n" for word, answer in words for task in (*TASKS, "new")]
    (run / "questions.tsv").write_text("input\toutput\ttask\n" + "".join(rows))


def _policy_run(folder: Path) -> None:
    (folder / "policies.yaml").write_text(yaml12.dump(policy_settings(folder)))
    train.main(["-c", str(folder / "policies.yaml"), "-k", "run.name=policies"])


def _models(folder: Path) -> None:
    for seed, name in enumerate(("base", "good")):
        torch.manual_seed(seed)
        config = AutoConfig.for_model("t5", **T5, decoder_start_token_id=0)
        model = AutoModelForSeq2SeqLM.from_config(config)
        model.save_pretrained(folder / name, max_shard_size="5GB" if seed else "20KB")
        ByT5Tokenizer().save_pretrained(folder / name)
        fisher = {key: value.detach().square() for key, value in model.named_parameters()}
        save_file(fisher, folder / f"{name}.safetensors")


def _adapter(folder: Path) -> None:
    folder.mkdir()
    paths = [f"encoder.block.0.layer.0.SelfAttention.{name}" for name in "qkvo"]
    tensors = {}
    for path in paths:
        tensors[f"{PREFIX}{path}.lora_A.weight"] = torch.randn(2, 16 if path[-1] != "o" else 8)
        tensors[f"{PREFIX}{path}.lora_B.weight"] = torch.randn(8 if path[-1] != "o" else 16, 2)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": "models/base",
        "r": 2,
        "lora_alpha": 4,
        "bias": "none",
        "use_rslora": False,
        "init_lora_weights": True,
        "alpha_pattern": {"SelfAttention.q": 8, ".*\\.v": 6},
        "rank_pattern": {"SelfAttention.q": 2},
        "target_modules": ["q", "k", "v", "o"],
        "modules_to_save": None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


def _library(folder: Path) -> None:
    layers = {"a.q": (4, 5), "a.v": (4, 3)}
    base = BaseModel(
        name="base", fingerprint="0" * 64, task_type="CAUSAL_LM", transposed=False, layers=layers
    )
    members = [
        Member(
            MemberCard(name=name, task=name, source="runs/own", scores=[{"score": "0.5"}]),
            {path: LowRank(torch.randn(i, 2), torch.randn(o, 2)) for path, (i, o) in chosen},
        )
        for name, chosen in (("one", list(layers.items())[:1]), ("two", layers.items()))
    ]
    add_members(folder, base, members)


def _tasks(folder: Path) -> None:
    folder.mkdir()
    records = [{"text": f"a text {n} and more", "label": n % 2} for n in range(60)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "rows.jsonl").write_text(lines)
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "rows.tsv").write_text("".join(f"{r['text']}\t{r['label']}\n" for r in records))
    (folder / "rows.csv").write_text(
        "text,label\n" + "".join(f'"{r["text"]}",{r["label"]}\n' for r in records)
    )
    tasks = {
        "category": "classification/topic",
        "kind": "classification",
        "tasks": {
            "own": {
                "source": {"train": "rows.jsonl"},
                "input": "{text}",
                "output": "{label|name}",
                "labels": ["World", "Sports"],
                "metric": "ACC",
                "description": "topic of a text",
            },
        },
    }
    (folder / "tasks.yaml").write_text(yaml12.dump(tasks))


def _results(folder: Path) -> None:
    for number, (lr, score) in enumerate(((0.1, 0.5), (0.01, 0.7))):
        trial = folder / "trials" / f"optim.lr={lr}"
        note_values(trial, {"optim.lr": lr})
        for job in JOBS:
            row = FewShotResult(
                job.task, job.sample, job.seed, "ACC", score, score, 2, 100, number, 4
            )
            Results(trial).add(row)
    level = {
        **{"level": "GoToObjS4", "seed": 13, "mode": "all", "greedy": 0.5, "sampled": 0.25},
        **{"greedy_steps": 4.5, "sampled_steps": 6.0, "episodes": 100, "frames": 1000},
        **{"solved_after": None, "n_trained": 12},
    }
    (folder / "levels.jsonl").write_text(json.dumps(level) + "\n")


def _policy_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    record = [
        Demonstration(
            level,
            seed,
            "go to the red ball",
            rng.integers(0, 4, (5, 7, 7, 3), np.uint8),
            rng.integers(0, 4, 5, np.uint8),
            rng.integers(0, 7, 5, np.uint8),
        )
        for level in LEVELS
        for seed in range(3)
    ]
    (folder / "demonstrations").mkdir()
    save_demonstrations(record, folder / "demonstrations" / "two.npz")


def _sparse(folder: Path) -> None:
    start = {"a.weight": torch.randn(8, 4), "b.weight": torch.randn(6)}
    end = {name: tensor + 1.0 for name, tensor in start.items()}
    support = {"a.weight": torch.tensor([1, 5, 30]), "b.weight": torch.tensor([0, 3])}
    skill = SparseSkill.between(start, end, support, {"task": "copy", "lr": 0.1})
    (folder / "sparse").mkdir()
    skill.save(folder / "sparse" / "skill.safetensors")
    state = {"n_done": 3, "weights": {"a": torch.randn(5)}, "random": torch.get_rng_state()}
    save_state(folder / "sparse" / "state.pt", state, {"task": "copy"})


def copy_sample(source: Path, target: Path) -> None:
    """Copy a folder of samples for one case."""
    shutil.copytree(source, target)

"""The commands that write, how each is started again, and what of its work is kept."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kills.material import LEVELS

Arguments = list[str]
TINY = ("-c", "tiny.yaml", "-k")


@dataclass(frozen=True)
class Command:
    """A command of the test.

    Args:
        name: What it is called here.
        command: As it is typed after ``mttl``.
        arguments: Of the first start.
        out: What it writes, by its path in the working directory.
        again: Returns the arguments of a later start, from the working directory; None where there
            is nothing left to do.
        kept: Returns how much of the work is kept; killed, it must never get less.
        weight: How many chains of kills it gets, against others.
    """

    name: str
    command: str
    arguments: Arguments
    out: str
    again: Callable[["Command", Path], Arguments | None]
    kept: Callable[["Command", Path], float]
    weight: int = 2


def _resume(command: Command, folder: Path) -> Arguments:
    run = folder / command.out
    begun = run.is_dir() and any(run.iterdir())
    return [*command.arguments, *(["--resume"] if begun else [])]


def _same(command: Command, folder: Path) -> Arguments:
    return command.arguments


def _unless_there(command: Command, folder: Path) -> Arguments | None:
    return None if (folder / command.out).exists() else command.arguments


def _sparse(command: Command, folder: Path) -> Arguments | None:
    if (folder / f"{command.out}.state").exists():
        return [*command.arguments, "--resume"]
    return _unless_there(command, folder)


def _step(command: Command, folder: Path) -> float:
    """Return the step of a run's checkpoint; damaged ones are worth nothing."""
    import torch

    try:
        path = folder / command.out / "checkpoints" / "last.ckpt"
        return float(torch.load(path, map_location="cpu", weights_only=False)["global_step"])
    except Exception:
        return 0.0


def _jobs(command: Command, folder: Path) -> float:
    lines = 0
    for path in (folder / command.out).rglob("results*.jsonl"):
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            json.loads(line)
            lines += 1
    return lines


def _answers(command: Command, folder: Path) -> float:
    """Return how many parts of the questions are answered; a part is written at once."""
    if (folder / command.out).exists():
        return float("inf")
    path = folder / f".{command.out}.part" / "answers.jsonl"
    return path.read_text(errors="replace").count("\n") if path.is_file() else 0


def _built(command: Command, folder: Path) -> float:
    return len(list((folder / command.out).glob("*/.built.json")))


def _there(command: Command, folder: Path) -> float:
    return float((folder / command.out).exists())


def _members(command: Command, folder: Path) -> float:
    path = folder / command.out / "library.json"
    return float(len(json.loads(path.read_text())["members"])) if path.is_file() else 0.0


def _unless_member(command: Command, folder: Path) -> Arguments | None:
    return None if _members(command, folder) else command.arguments


def _sparse_steps(command: Command, folder: Path) -> float:
    import torch

    if (folder / command.out).exists():
        return float("inf")
    try:
        state = torch.load(folder / f"{command.out}.state", map_location="cpu", weights_only=True)
        return 1.0 + float(state["state"].get("n_done", 0))
    except Exception:
        return 0.0


def _stages(command: Command, folder: Path) -> float:
    costs = (folder / command.out).glob("*/seed*-*.json")
    return sum(json.loads(path.read_text())["ended"] for path in costs)


def _train(name: str, *settings: str, file: str = "tiny.yaml", weight: int = 4) -> Command:
    given = ["-c", file, "-k", f"run.name={name}", *settings]
    return Command(name, "train", given, f"runs/{name}", _resume, _step, weight)


def _once(name: str, command: str, *arguments: str, out: str, weight: int = 1) -> Command:
    given = [*arguments, "--out", out]
    return Command(name, command, given, out, _unless_there, _there, weight)


# They make what the others work on.
SOURCES = (
    _train("source", "trainer.max_steps=4"),
    _train("policies", "trainer.max_epochs=2", file="policies.yaml"),
    _once(
        *("demonstrations", "babyai record", "--levels", *LEVELS),
        *("--episodes", "12"),
        out="demonstrations.npz",
    ),
    _once(
        *("adapter", "export", "runs/source", "--task", "copy"),
        out="adapter",
    ),
)
COMMANDS = (
    _train("train", weight=6),
    _train(
        "train-epochs",
        "trainer.max_steps=-1",
        "trainer.max_epochs=3",
        "trainer.val_check_interval=null",
        "trainer.accumulate_grad_batches=2",
        "data.n_workers=1",
    ),
    _train(
        "train-experts",
        "data.validation=none",
        "trainer.val_check_interval=null",
        file="tiny.yaml+experts.yaml",
    ),
    _train("babyai", file="policies.yaml", weight=6),
    _train("babyai-workers", "rl.n_workers=2", "trainer.max_epochs=12", file="policies.yaml"),
    _train("imitation", "rl.demonstrations=demonstrations.npz", file="policies.yaml"),
    Command(
        *("adapt", "adapt"),
        [*TINY, "adapt.seeds=[1,2]", "--from", "runs/source"],
        "runs/source/adapt-all",
        _same,
        _jobs,
        3,
    ),
    Command(
        *("adapt-save", "adapt"),
        [*TINY, "adapt.seeds=[1,2]", "--from", "runs/source", "--samples", "13", "--save"],
        "runs/source/adapt-all",
        _same,
        _jobs,
    ),
    Command(
        *("predict", "predict"),
        [
            *("--from", "runs/source", "--in", "questions.jsonl", "--out", "answers.jsonl"),
            *("--batch-size", "1"),
        ],
        "answers.jsonl",
        _unless_there,
        _answers,
    ),
    Command(
        *("adapt-workers", "adapt"),
        [*TINY, "adapt.seeds=[1,2]", "--from", "runs/source", "--workers", "2"],
        "runs/source/adapt-all",
        _same,
        _jobs,
        1,
    ),
    Command(
        *("adapt-policies", "adapt"),
        ["-c", "policies.yaml", "--from", "runs/policies"],
        "runs/policies/adapt-all",
        _same,
        _jobs,
    ),
    Command(
        *("search", "search"),
        [*TINY, "search.grid={adapt.lr: [1e-3, 1e-2]}", "--from", "runs/source"],
        "runs/source/search-all",
        _same,
        _jobs,
    ),
    Command(
        *("search-ranges", "search"),
        [
            *TINY,
            "search.ranges={adapt.lr: {low: 1e-4, high: 1e-2, log: true}}",
            "search.trials=3",
            "--from",
            "runs/source",
        ],
        "runs/source/search-all",
        _same,
        _jobs,
    ),
    Command(
        *("ablate", "ablate"),
        ["runs/source", "--loss", "--rows", "1"],
        "runs/source/ablation",
        _same,
        _jobs,
        1,
    ),
    Command(
        *("compare", "compare"),
        [
            "-c",
            "tiny.yaml",
            "--methods",
            "polytropon",
            "--modes",
            "--seeds",
            "13",
            "--steps",
            "4",
            "--adapt-steps",
            "2",
            "--workers",
            "1",
            "--out",
            "runs/compare",
        ],
        "runs/compare",
        _same,
        _stages,
        1,
    ),
    Command(
        *("build", "build"),
        ["--config", "tasks.yaml", "--samples", "13", "100", "--out", "built", "--workers", "1"],
        "built",
        _same,
        _built,
    ),
    Command(
        *("build-workers", "build"),
        ["--config", "tasks.yaml", "--samples", "13", "100", "--out", "built", "--workers", "2"],
        "built",
        _same,
        _built,
        1,
    ),
    _once("merge", "merge", "recipe.yaml", out="merged", weight=2),
    Command(
        "sweep",
        "sweep",
        ["sweep.yaml", "--out", "runs/source/swept"],
        "runs/source/swept",
        _same,
        _jobs,
    ),
    _once("merge-task", "merge-task", "runs/source", "--task", "copy", out="plain"),
    _once("export", "export", "runs/source", "--task", "copy", out="exported"),
    _once("export-all", "export", "runs/source", "--all", out="exports"),
    _once("import", "import", "adapter", "--tokenizer", "byte", out="imported"),
    Command(
        *("library", "library"),
        ["add", "library", "adapter"],
        "library",
        _unless_member,
        _members,
        1,
    ),
    _once(
        *("fisher", "fisher", "--model", "base", "--tokenizer", "byte"),
        *("--gym", "gym", "--tasks", "copy", "--max-output-length", "6"),
        out="fisher.safetensors",
    ),
    _once(
        *("record", "babyai record", "--levels", *LEVELS, "--episodes", "4"),
        out="recorded.npz",
    ),
    Command(
        *("sparse", "sparse"),
        [
            "--model",
            "base",
            "--tokenizer",
            "byte",
            "--text",
            "text.txt",
            "--mask",
            "_",
            "--density",
            "0.05",
            "--full-steps",
            "4",
            "--sparse-steps",
            "4",
            "--batch-size",
            "4",
            "--save-every",
            "2",
            "--out",
            "skill.safetensors",
        ],
        "skill.safetensors",
        _sparse,
        _sparse_steps,
        3,
    ),
)

"""The kinds of files, each with the function or command that reads it."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzing import samples
from mttl.adaptation.plan import Results
from mttl.adaptation.resumable_jobs import ResumableJobs
from mttl.adaptation.search import finished_trials, job_results
from mttl.analysis.explore.explore_page import explore_page
from mttl.analysis.routing_record import read_ablation, read_record
from mttl.assembly.build_router import read_expert_matrix
from mttl.assembly.model import load_run
from mttl.babyai.build_policy import load_policies
from mttl.babyai.demonstration_loader import read_demonstrations
from mttl.babyai.new_levels import LevelResult
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.commands import import_peft, merge, predict, train
from mttl.commands.ablate_skills import SwitchedOff
from mttl.commands.routing_report.read_routing import read_view
from mttl.config.load import load_any_config
from mttl.io import yaml12
from mttl.library.library_folder import open_library
from mttl.merging.differences import fisher_differences, setting_differences, weight_differences
from mttl.merging.recipe import read_recipe
from mttl.merging.weights_folder import Weights
from mttl.models.backbone import load_pretrained, load_tokenizer
from mttl.peft_format.peft_folder import read_peft
from mttl.peft_format.peft_lora import read_lora
from mttl.runtime.command import USER_MISTAKE, run_command
from mttl.sparse.loop import load_state
from mttl.sparse.skill_file import SparseSkill
from mttl.tasks.folder import SPLITS, Gym
from mttl.tasks.partition import Partition
from mttl.tasks.rows import read_records
from mttl.tasks.sample_files import update_task_table
from mttl.tasks.task_file import load_tasks
from mttl.training.loggers import MetricsFile

Read = Callable[[Path], Any]


class Refused(Exception):
    """A command ended with the status of a user's mistake; the text is its message."""


class WrongStatus(Exception):
    """A command ended with another status."""


@dataclass(frozen=True)
class Area:
    """One kind of file.

    Attributes:
        sample: The folder of `fuzzing.samples` that a case works on a copy of.
        files: Patterns of the files in it that are changed.
        read: Reads them; gets the folder.
        checked: What checksums detect: ``"all"`` other content, or ``"bytes"`` that were damaged by
            accident: a rewritten archive has new checksums.
        weight: Relative number of cases.
    """

    sample: str
    files: tuple[str, ...]
    read: Read
    checked: str = ""
    weight: float = 1.0


def command(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    """Run a command as from a terminal.

    Raises:
        Refused: If its status says that the user made a mistake.
        WrongStatus: If it is neither that nor 0.
    """
    out, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(messages):
        status = run_command(lambda: main(arguments))
    if status == USER_MISTAKE:
        raise Refused(messages.getvalue().rpartition("error: ")[2])
    if status:
        raise WrongStatus(f"{status}: {messages.getvalue()[-2000:]}")


def _gym(folder: Path) -> Any:
    gym = Gym(folder)
    tasks = gym.tasks()
    rows = [gym.rows(task, split, 100) for task in tasks for split in SPLITS]
    return [tasks, rows, [(gym.metric(task), gym.description(task)) for task in tasks]]


def _task_table(folder: Path) -> Any:
    update_task_table(folder, [])
    return (folder / "TASKS.csv").read_bytes()


def _records(name: str) -> Read:
    columns = ("text", "label") if name.endswith(".tsv") else ()

    return lambda folder: list(read_records(folder / name, columns))


def _configuration(folder: Path) -> Any:
    return [
        load_any_config(
            [str(folder / "run.yaml"), str(folder / "fragment.yaml")], ["optim.lr=0.1"]
        ),
        load_any_config([str(folder / "policies.yaml")]),
    ]


def _resume(folder: Path) -> Any:
    command(train.main, ["-c", str(folder.parent / "settings.yaml"), "--resume"])
    skills = read_inventory(folder / "skills")
    return [skills.skills, skills.router, skills.backbone]


def _peft(folder: Path) -> Any:
    return {path: (part.down, part.up) for path, part in read_lora(read_peft(folder)).items()}


def _import(folder: Path) -> Any:
    out = folder.parent / "imported"
    arguments = [str(folder), "--backbone", str(MODELS / "base"), "--out", str(out)]
    command(import_peft.main, arguments)
    return read_inventory(out).skills


def _library(folder: Path) -> Any:
    library = open_library(folder)
    members = [library.member(name) for name in library.members]
    changes = [(path, part.down, part.up) for one in members for path, part in one.changes.items()]
    return [library, [member.card for member in members], changes]


def _weights(folder: Path) -> Any:
    base, good = Weights(folder / "base"), Weights(folder / "good")
    fisher = Weights(folder / "good.safetensors")
    return [
        dict(good),
        weight_differences(base, good),
        fisher_differences(base, fisher, list(base)),
        setting_differences(folder / "base", folder / "good"),
    ]


def _merge(folder: Path) -> Any:
    recipe = folder / "recipe.yaml"
    settings = {
        "base": {"model": str(folder / "base")},
        "models": [{"model": str(folder / "good")}],
        "method": {"kind": "arithmetic"},
    }
    recipe.write_text(yaml12.dump(settings))
    command(merge.main, [str(recipe), "--out", str(folder / "merged")])
    return dict(Weights(folder / "merged"))


def _backbone(folder: Path) -> Any:
    model = load_pretrained(str(folder))
    tokenizer = load_tokenizer(str(folder))
    return [model, tokenizer("abc").input_ids]


def _metrics(folder: Path) -> Any:
    return [MetricsFile(folder / "metrics.csv", keep_until=100).rows, read_record(folder).curves]


def _page(folder: Path) -> Any:
    return explore_page([read_view(folder)])


def _skills(folder: Path) -> Any:
    saved = read_inventory(folder / "skills")
    return [saved.meta["settings"], saved.tasks, saved.skills, saved.router, saved.backbone]


def _run(folder: Path) -> Any:
    built = load_run(folder)
    return [built.model, built.tasks, inventory_digest(folder / "skills")]


def _adapted(folder: Path) -> Any:
    built = load_run(folder / "models" / "new", run=folder)
    return [built.model, built.tasks, built.form]


def _answers(folder: Path) -> Any:
    files = ["--in", str(folder / "questions.tsv"), "--out", str(folder / "answers.tsv")]
    models = ["--from", str(folder), "--adapted", str(folder / "models" / "new")]
    command(predict.main, [*models, *files, "--batch-size", "1"])
    return (folder / "answers.tsv").read_bytes()


def _policies(folder: Path) -> Any:
    model, levels = load_policies(folder)
    return [model, levels]


MODELS = Path()  # set by the worker: models that are sound
SKILLS = ("skills/*.safetensors", "skills/tasks.json", "skills/meta.json")

AREAS: dict[str, Area] = {
    "configuration": Area("config", ("run.yaml", "fragment.yaml", "policies.yaml"), _configuration),
    "recipe": Area("config", ("recipe.yaml",), lambda folder: read_recipe(folder / "recipe.yaml")),
    "partition": Area("gym", ("*.json",), lambda folder: Partition.read(folder / "partition.json")),
    "gym": Area("gym", ("TASKS.csv", "*/*.tsv", "*/*.jsonl"), _gym),
    "task table": Area("gym", ("TASKS.csv",), _task_table),
    "expert matrix": Area(
        "gym",
        ("expert.csv",),
        lambda folder: read_expert_matrix(str(folder / "expert.csv"), samples.TASKS, 2),
    ),
    "task definitions": Area("tasks", ("*.yaml",), lambda f: load_tasks(f / "tasks.yaml")),
    "records JSONL": Area("tasks", ("rows.jsonl",), _records("rows.jsonl")),
    "records gzip": Area("tasks", ("*.gz",), _records("packed.jsonl.gz")),
    "records CSV": Area("tasks", ("rows.csv",), _records("rows.csv")),
    "records TSV": Area("tasks", ("rows.tsv",), _records("rows.tsv")),
    "skills folder": Area("run", SKILLS, _skills, checked="all", weight=2),
    "run": Area("run", SKILLS, _run, checked="all", weight=0.3),
    "adapted task": Area(
        "run", tuple(f"models/new/{name}" for name in SKILLS), _adapted, checked="all", weight=0.3
    ),
    "prediction": Area(
        "run",
        ("questions.tsv", "results.csv", "models/new/results.csv"),
        _answers,
        weight=0.3,
    ),
    "policies": Area("policies", SKILLS, _policies, checked="all", weight=0.3),
    "checkpoint of text": Area(
        "run", ("checkpoints/last.ckpt", "config.yaml", "metrics.csv"), _resume, "bytes", 0.4
    ),
    "checkpoint of policies": Area(
        "policies", ("checkpoints/last.ckpt", "config.yaml", "metrics.csv"), _resume, "bytes", 0.3
    ),
    "metrics": Area("run", ("metrics.csv",), _metrics),
    "routing record": Area(
        "run", ("plots/*.npz",), lambda folder: read_record(folder), checked="bytes"
    ),
    "ablation record": Area("run", ("ablation/*.npz",), read_ablation, checked="bytes"),
    "ablation results": Area(
        "run",
        ("ablation/results.jsonl",),
        lambda folder: ResumableJobs(folder / "ablation" / "results.jsonl", SwitchedOff).finished,
    ),
    "report page": Area(
        "run",
        (
            *("plots/*.npz", "metrics.csv", *SKILLS, "results.csv", "baselines.csv"),
            *("predictions/*.jsonl", "ablation/*.npz", "adapt-all/models/new/plots/*.npz"),
        ),
        _page,
        weight=0.4,
    ),
    "PEFT folder": Area("peft", ("*",), _peft, weight=2),
    "PEFT import": Area("peft", ("*",), _import, weight=0.2),
    "library": Area("library", ("library.json",), _library),
    "members of a library": Area("library", ("members/*/*",), _library, checked="all"),
    "models to merge": Area(
        "models", ("good/*.safetensors", "*/*.json", "*.safetensors"), _weights
    ),
    "merging": Area("models", ("good/*", "base/*"), _merge, weight=0.3),
    "backbone folder": Area("models/base", ("*",), _backbone, weight=0.5),
    "sparse skill": Area(
        "sparse",
        ("*.safetensors",),
        lambda folder: SparseSkill.load(folder / "skill.safetensors"),
        checked="all",
    ),
    "state of a loop": Area(
        "sparse",
        ("*.pt",),
        lambda folder: load_state(folder / "state.pt", {"task": "copy"}, resume=True),
        checked="bytes",
    ),
    "demonstrations": Area(
        "demonstrations",
        ("*.npz",),
        lambda folder: read_demonstrations(folder / "two.npz", samples.LEVELS),
        checked="bytes",
    ),
    "search trials": Area(
        "results",
        ("trials/*/*.json*",),
        lambda folder: finished_trials(
            folder / "trials", lambda trial: job_results(trial, samples.JOBS)
        ),
    ),
    "results of jobs": Area(
        "results/trials/optim.lr=0.1", ("results.jsonl",), lambda folder: Results(folder).finished
    ),
    "results of levels": Area(
        "results",
        ("levels.jsonl",),
        lambda folder: ResumableJobs(folder / "levels.jsonl", LevelResult).finished,
    ),
}
torch.set_num_threads(1)

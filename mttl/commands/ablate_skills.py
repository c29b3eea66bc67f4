"""Score every task without each skill; see `mttl.commands.ablate`."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
from mttl.analysis.skill_matching import align_groups
from mttl.checkpoints.inventory_files import inventory_digest, inventory_folder
from mttl.commands.routing_report.read_routing import open_run, read_settings
from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.capabilities import require_features
from mttl.inference.task_options import wanted_options
from mttl.io.errors import ConfigError
from mttl.io.record import Record
from mttl.io.yaml12 import dump
from mttl.metrics.crossfit import score_answers
from mttl.routing.task.task_router import TaskRouter
from mttl.runtime.command import make_console
from mttl.runtime.processes import device_of
from mttl.training.loss import example_means
from mttl.training.monitors import as_rows, head_names, write_arrays
from mttl.training.text_to_text import Prediction, answers_of

# Skill number that stands for no ablation.
NONE = -1
ALL_LAYERS = "all layers"
Scores = tuple[dict[str, float], dict[str, float | None]]  # losses and scores by task


class DisabledSkill(NamedTuple):
    """A switched-off skill and its layers; skill `NONE` is the unchanged model."""

    layers: str
    skill: int


class SwitchedOff(Record):
    """Mean losses, and optionally scores, of the tasks that use a switched-off skill."""

    job: DisabledSkill
    losses: dict[str, float]
    scores: dict[str, float | None]


def ablate(run: Path, out: Path, options: Namespace) -> None:
    """Switch off one skill after another and write the results; finished ones are kept."""
    config = read_settings(run)
    policies = isinstance(config, BabyAIConfig)
    study = _of_levels(run, config, options) if policies else _of_rows(run, options)
    asked = {"loss_only": options.loss, "per_group": options.per_group, "share": options.share}
    asked |= study.data | {"inventory": inventory_digest(inventory_folder(run))}
    results = ResumableJobs(out / "results.jsonl", SwitchedOff)
    with results.writing():
        if not results.finished:
            (out / "settings.yaml").unlink(missing_ok=True)
        problem = f"the results in '{out}' were made with other settings"
        keep_settings(out / "settings.yaml", dump(asked), problem)
        layers = study.groups if options.per_group else [ALL_LAYERS]
        skills = range(study.weights.shape[2])
        off = [DisabledSkill(name, skill) for name in layers for skill in skills]
        switches, status = [DisabledSkill(ALL_LAYERS, NONE), *off], make_console(stderr=True)
        results.run(switches, lambda job, _: study.measure(job), status, doing="switching off")
        study.write(out / "ablation.npz", results, layers)


def _of_rows(run: Path, options: Namespace) -> "_Study":
    """Return the study of a language model on development rows."""
    rows = {} if options.rows is None else {"max_eval_rows": options.rows}
    config, built, gym, module, data = open_run(
        run, "name the folder of a run with rows or levels", options.backbone, seed=13, **rows
    )
    require_features(config, {"ablates": "ablate"})
    samples = [(task, config.data.samples) for task in built.tasks]
    answers = wanted_options(gym, samples, config.generation.mode)
    module.set_options(answers, built.form, per_token=config.generation.per_token)

    def scores(users: Sequence[int]) -> Scores:
        losses: dict[str, list[float]] = {module.tasks[task]: [] for task in users}
        answers: dict[str, list[Prediction]] = {module.tasks[task]: [] for task in users}
        with built.autocast():
            for batch in data.evaluation_dataloader("dev", users):
                batch = module.transfer_batch_to_device(batch, module.device, 0)
                found, labels, _ = module.nll(batch)
                means = example_means(found, labels).tolist()
                for task, loss in zip(batch["task_ids"].tolist(), means, strict=True):
                    losses[module.tasks[task]].append(loss)
                for row in () if options.loss else module.predict(batch):
                    answers[module.tasks[row.task_id]].append(row)
        values = {
            task: score_answers(metric, *answers_of(answers[task]))
            for task, metric in zip(module.tasks, module.metric_names, strict=True)
            if answers.get(task)
        }
        scored = {task: value if math.isfinite(value) else None for task, value in values.items()}
        return {task: float(np.mean(rows)) for task, rows in losses.items() if rows}, scored

    groups, used = built.attachment.groups, {"rows": data.data.max_eval_rows}
    return _Study(built.model.router, module.tasks, groups, scores, options.share, used)


def _of_levels(run: Path, config: BabyAIConfig, options: Namespace) -> "_Study":
    """Return the study of policies on evaluation episodes: mean steps are the loss."""
    if options.loss or options.backbone:
        raise ConfigError(f"'{run}' has policies; leave out --loss and --backbone")
    from mttl.babyai.build_policy import load_policies
    from mttl.babyai.evaluate import play_levels

    require_features(config, {"ablates": "ablate"})
    model, levels = load_policies(run)
    model.to(device_of())
    how = config.rl.evaluation.model_dump(exclude={"choose"})
    how["n_episodes"] = options.rows or how["n_episodes"]

    def scores(users: Sequence[int]) -> Scores:
        names = [levels[task] for task in users]
        played = play_levels(model, names, choose="greedy", tasks=users, **how)
        means = (values.mean(1).tolist() for values in (played.steps, played.success))
        steps, success = (dict(zip(names, values, strict=True)) for values in means)
        return steps, success

    return _Study(model.router, levels, model.groups, scores, options.share, {"episodes": how})


@dataclass
class _Study:
    """A router whose skills are switched off, and a function that scores some of its tasks."""

    router: TaskRouter
    tasks: Sequence[str]
    layers: Sequence[str]
    scores: Callable[[Sequence[int]], Scores]
    share: bool
    data: dict[str, Any]  # settings of the rows or episodes

    def __post_init__(self) -> None:
        self.weights = as_rows(self.router.matrix())
        self.groups = head_names(tuple(self.layers), len(self.weights))  # every head is a group
        self.pairs = align_groups(self.weights)

    def cells(self, switch: DisabledSkill) -> Float[np.ndarray, "GH K"]:
        """Return the factors on the mixing weights: 0 for the skill that is off, else 1.

        If all groups are switched, skills are numbered in the matched order.
        """
        mask = np.ones((len(self.weights), self.weights.shape[2]), dtype=np.float32)
        if switch.layers == ALL_LAYERS and switch.skill != NONE:
            mask[np.arange(len(mask)), self.pairs[:, switch.skill]] = 0
        elif switch.skill != NONE:
            mask[self.groups.index(switch.layers), switch.skill] = 0
        return mask

    def users(self, switch: DisabledSkill) -> list[int]:
        """Return the tasks that use the skill; all tasks if routing depends on the text."""
        if switch.skill == NONE or self.router.reads_text:
            return list(range(self.weights.shape[1]))
        return np.flatnonzero(self.weights.swapaxes(1, 2)[self.cells(switch) == 0].any(0)).tolist()

    def measure(self, switch: DisabledSkill) -> SwitchedOff:
        """Return losses, and scores if requested, with a skill switched off."""
        users, cells = self.users(switch), torch.from_numpy(self.cells(switch))
        with torch.no_grad(), switched_off(self.router, cells, share=self.share):
            losses, scores = self.scores(users) if users else ({}, {})
        return SwitchedOff(job=switch, losses=losses, scores=scores)

    def write(self, path: Path, results: ResumableJobs[SwitchedOff], layers: Sequence[str]) -> None:
        """Write the changes as arrays (P, T, K): parts of the network, tasks, skills."""
        tasks, skills = self.tasks, range(self.weights.shape[2])
        before = results.finished[DisabledSkill(ALL_LAYERS, NONE)]
        arrays: dict[str, np.ndarray] = {}
        for name in ("losses", "scores") if before.scores else ("losses",):
            # Undefined scores count as 0; tasks that do not use a skill do not change.
            start = {task: getattr(before, name)[task] or 0 for task in tasks}
            arrays[f"{name}_before"] = np.array([*start.values()])
            off = [[DisabledSkill(part, skill) for skill in skills] for part in layers]
            found = [[start | getattr(results.finished[job], name) for job in row] for row in off]
            after = np.array([[[own[task] or 0 for task in tasks] for own in row] for row in found])
            arrays[name] = (after - arrays[f"{name}_before"]).swapaxes(1, 2)
        arrays |= {"tasks": np.array(tasks), "layers": np.array(layers)}
        write_arrays(path, **arrays, groups=np.array(self.groups), pairs=self.pairs)


@contextmanager
def switched_off(
    router: TaskRouter, cells: Float[Tensor, "GH K"], *, share: bool = False
) -> Iterator[None]:
    """Context manager: multiply a router's mixing weights by ``cells``; 0 switches a skill off.

    With ``share``, the other skills of a row are rescaled to the original sum; a row without other
    skills stays 0.
    """

    def off(module: TaskRouter, given: Any, weights: Float[Tensor, "G B H K"]) -> Tensor:
        mask = cells.to(weights).view(weights.shape[0], 1, weights.shape[2], weights.shape[3])
        left = weights * mask
        if share:
            total, rest = weights.sum(-1, keepdim=True), left.sum(-1, keepdim=True)
            left = left * torch.where(rest != 0, total / torch.where(rest != 0, rest, 1), 1)
        return left

    handle = router.register_forward_hook(off)
    try:
        yield
    finally:
        handle.remove()

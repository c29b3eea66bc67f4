"""Score every task without each skill; see `mttl.commands.ablate`."""

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
from mttl.analysis.skill_matching import align_groups
from mttl.assembly.model import Built
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.commands.routing_report.read_routing import open_run
from mttl.config.capabilities import require_features
from mttl.data.data_module import TextToTextDataModule
from mttl.inference.task_options import wanted_options
from mttl.io.record import Record
from mttl.io.yaml12 import dump
from mttl.metrics.crossfit import score_answers
from mttl.routing.task.task_router import TaskRouter
from mttl.runtime.command import make_console
from mttl.training.loss import example_means
from mttl.training.monitors import as_rows, head_names, write_arrays
from mttl.training.text_to_text import Prediction, TextToTextModule, answers_of

# Skill number that stands for no ablation.
NONE = -1
ALL_LAYERS = "all layers"


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
    rows = {} if options.rows is None else {"max_eval_rows": options.rows}
    config, built, gym, module, data = open_run(
        run, "name the folder of a run of text-to-text tasks", options.backbone, seed=13, **rows
    )
    require_features(config, {"ablates": "ablate"})
    assert built.folder is not None
    asked = {"loss_only": options.loss, "per_group": options.per_group, "share": options.share}
    asked |= {"rows": data.data.max_eval_rows, "inventory": inventory_digest(built.folder)}
    results = ResumableJobs(out / "results.jsonl", SwitchedOff)
    with results.writing():
        if not results.finished:
            (out / "settings.yaml").unlink(missing_ok=True)
        problem = f"the results in '{out}' were made with other settings"
        keep_settings(out / "settings.yaml", dump(asked), problem)
        samples = [(task, config.data.samples) for task in built.tasks]
        answers = wanted_options(gym, samples, config.generation.mode)
        module.set_options(answers, built.form, per_token=config.generation.per_token)
        weights = as_rows(built.model.router.matrix())
        pairs = align_groups(weights)
        study = _Study(module, built, data, not options.loss, options.share, weights, pairs)
        layers = study.groups if options.per_group else [ALL_LAYERS]
        off = [DisabledSkill(name, skill) for name in layers for skill in range(weights.shape[2])]
        switches, status = [DisabledSkill(ALL_LAYERS, NONE), *off], make_console(stderr=True)
        results.run(switches, lambda job, _: study.measure(job), status, doing="switching off")
        study.write(out / "ablation.npz", results, layers)


@dataclass(frozen=True)
class _Study:
    """A loaded run, its development rows, and its matched skills."""

    module: TextToTextModule
    built: Built
    data: TextToTextDataModule
    scored: bool
    share: bool
    weights: Float[np.ndarray, "GH T K"]
    pairs: Int[np.ndarray, "GH K"]

    @property
    def groups(self) -> list[str]:
        """Names of the groups; every head is its own group."""
        return head_names(self.built.attachment.groups, len(self.weights))

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
        if switch.skill == NONE or self.module.model.router.reads_text:
            return list(range(self.weights.shape[1]))
        return np.flatnonzero(self.weights.swapaxes(1, 2)[self.cells(switch) == 0].any(0)).tolist()

    def measure(self, switch: DisabledSkill) -> SwitchedOff:
        """Return losses, and scores if requested, with a skill switched off."""
        names, users = self.module.tasks, self.users(switch)
        losses: dict[int, list[float]] = {task: [] for task in users}
        answers: dict[int, list[Prediction]] = {task: [] for task in users}
        router = self.module.model.router
        cells = torch.from_numpy(self.cells(switch))
        with torch.no_grad(), self.built.autocast(), switched_off(router, cells, share=self.share):
            for batch in self.data.evaluation_dataloader("dev", users) if users else ():
                batch = self.module.transfer_batch_to_device(batch, self.module.device, 0)
                found, labels, _ = self.module.nll(batch)
                means = example_means(found, labels).tolist()
                for task, loss in zip(batch["task_ids"].tolist(), means, strict=True):
                    losses[task].append(loss)
                for row in self.module.predict(batch) if self.scored else ():
                    answers[row.task_id].append(row)
        scores = {names[task]: self._score(task, rows) for task, rows in answers.items() if rows}
        mean = {names[task]: float(np.mean(rows)) for task, rows in losses.items() if rows}
        return SwitchedOff(job=switch, losses=mean, scores=scores)

    def _score(self, task: int, rows: Sequence[Prediction]) -> float | None:
        score = score_answers(self.module.metric_names[task], *answers_of(rows))
        return score if math.isfinite(score) else None

    def write(self, path: Path, results: ResumableJobs[SwitchedOff], layers: Sequence[str]) -> None:
        """Write the changes as arrays (P, T, K): parts of the network, tasks, skills."""
        tasks, skills = self.module.tasks, range(self.weights.shape[2])
        before = results.finished[DisabledSkill(ALL_LAYERS, NONE)]
        arrays: dict[str, np.ndarray] = {}
        for name in ("losses", "scores") if self.scored else ("losses",):
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

"""Adapted tasks join the inventory that they were adapted from: T tasks become T + N."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from mttl.assembly.build_router import count_skills, counted, router_class
from mttl.assembly.saved_settings import ModelSettings, read_found_settings, read_settings
from mttl.checkpoints.inventory_files import SOURCE
from mttl.checkpoints.saved_inventory import SavedInventory
from mttl.config.section import Section
from mttl.config.skills_schema import kinds_of
from mttl.data.prompt_form import BY_TASK, PromptForm
from mttl.io.errors import CheckpointError
from mttl.routing.task.task_router import TaskRows

Tensors = dict[str, Tensor]
# What makes weights of a row, prompts of a question, and answers to them.
_READ = [f"router.{x}" for x in ("straight_through", "normalise", "shared_skill", "top_k")]
_READ += [f"data.{name}" for name in PromptForm.model_fields if name not in BY_TASK]
_READ += ["generation", "precision"]


def add_tasks(
    folder: Path, run: SavedInventory, adapted: Sequence[SavedInventory]
) -> SavedInventory:
    """Return an inventory that answers the tasks of a run and those that were adapted from it.

    A task whose adaptation left the skills as they are adds its routing row. Any other brings the
    skills that it was adapted with: they follow those of the run, which do not change, and
    only the new task uses them.

    Raises:
        CheckpointError: If a task is there already, its backbone was trained too, its router is of
            another kind, or its skills cannot be combined with those of the run.
    """
    settings = read_found_settings(run)
    rows = router_class(settings.router).rows_of_tasks()
    n_skills = settings.skills.n_skills if settings.skills.kind != "none" else 1
    own = n_total = count_skills(n_skills, settings.router, len(run.tasks))
    names, skills, router = list(run.tasks), dict(run.skills), dict(run.router)
    texts = {name: dict(getattr(settings.data, name)) for name in BY_TASK}
    for new in adapted:
        form = read_settings(new, ModelSettings)
        if problem := next(_problems(run, new, settings, form), None):
            raise CheckpointError(
                f"'{new.folder}' cannot be added to the run: {problem}. Adapt with "
                "adapt.mode=router_only adapt.init=nearest_task, which change nothing but a row of "
                "the run's own router, or keep the task in its folder, which mttl predict takes "
                "with --adapted"
            )
        if set(names) & set(new.tasks):
            raise CheckpointError(
                f"'{new.folder}' is of the task '{new.tasks[0]}', which is there already: name "
                "each task once"
            )
        row, in_front, behind = new.router, 0, n_total - own
        if not _equal(new.skills, run.skills):
            skills = {name: torch.cat([skills[name], new.skills[name]]) for name in skills}
            in_front, behind = n_total, 0
            router = _padded(router, rows, 0, own)
            n_total += own
        row = _padded(row, rows, in_front, behind)
        for name, place in rows.items():
            router[name] = torch.cat([router[name], row[name]], place.axis)
        names += new.tasks
        for name, known in texts.items():
            known |= getattr(form.data, name)
    changed: dict[str, Section] = {
        "data": settings.data.model_copy(update=texts),
        "router": counted(settings.router),
    }
    if settings.skills.kind != "none":
        changed["skills"] = settings.skills.model_copy(update={"n_skills": n_total})
    dumped = settings.model_copy(update=changed).model_dump(mode="json")
    meta = {name: value for name, value in run.meta.items() if name != SOURCE}
    return replace(
        run,
        folder=folder,
        meta=meta | {"settings": dumped, "backbone": meta["backbone"] | {"places": run.places}},
        tasks=tuple(names),
        skills=skills,
        router=router,
    )


def _padded(tensors: Tensors, rows: Mapping[str, TaskRows], in_front: int, behind: int) -> Tensors:
    """Return a router's tensors with more skills, which its tasks do not use."""

    def pad(tensor: Tensor, unused: float) -> Tensor:
        return torch.nn.functional.pad(tensor, (in_front, behind), value=unused)

    return tensors | {
        name: pad(tensors[name], place.unused)
        for name, place in rows.items()
        if place.unused is not None
    }


def _problems(
    run: SavedInventory, new: SavedInventory, settings: ModelSettings, form: ModelSettings
) -> Iterator[str]:
    """Say what keeps a task from being added: more than its row and skills, or others' answers."""
    router, kind = settings.router, router_class(settings.router)
    rows = kind.rows_of_tasks()
    if not rows:
        yield f"a router of the kind '{router.kind}' names no task_rows"
    if router_class(form.router) is not kind:
        yield f"its router is of the kind '{form.router.kind}', the run's '{router.kind}'"
    for name in _READ:
        own, theirs = (
            reduce(lambda section, key: getattr(section, key, None), name.split("."), part)
            for part in (form, settings)
        )
        if own != theirs:
            yield f"its {name} is {own}, the run's {theirs}"
    if not _equal(new.backbone or {}, run.backbone or {}):
        yield "adaptation trained its backbone too"
    common = [{k: v for k, v in part.router.items() if k not in rows} for part in (new, run)]
    if not _equal(*common):
        yield "adaptation changed what the router has in common for all tasks"
    reasons = {
        "all tasks choose among the same ones": settings.moe is not None
        or settings.aggregation.kind != "mixture",
        "share a factor with those of the run": getattr(settings.skills, "shared_down", False),
        "those of a stack have their stages": any(
            getattr(one, "stages", None) for one in kinds_of(settings.skills)
        ),
        f"'{router.kind}' cannot leave skills unused": all(
            place.unused is None for place in rows.values()
        ),
        "with router.shared_skill, or without router.normalise 'sum', more skills change every "
        "task": router.kind == "polytropon" and (router.shared_skill or router.normalise != "sum"),
    }
    if not _equal(new.skills, run.skills):
        yield from (f"its skills changed, and {reason}" for reason in reasons if reasons[reason])


def _equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )

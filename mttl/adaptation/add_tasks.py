"""Add adapted tasks to the inventory that they were adapted from."""

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
# Settings that determine routing weights, prompts and answers.
_READ = [f"router.{x}" for x in ("straight_through", "normalise", "shared_skill", "top_k")]
_READ += [f"data.{name}" for name in PromptForm.model_fields if name not in BY_TASK]
_READ += ["generation", "precision"]


def add_tasks(
    folder: Path, run: SavedInventory, adapted: Sequence[SavedInventory]
) -> SavedInventory:
    """Return an inventory with the tasks of a run and those adapted from it.

    If adaptation left the skills unchanged, only the task's routing weights are added. Otherwise
    the adapted skills are appended to those of the run, for use by the new task only; parameters
    of all skills together stay. Raises a `CheckpointError` if a task already exists, its backbone
    was trained, its router is of another kind, or its skills cannot be combined with those of the
    run.
    """
    settings = read_found_settings(run)
    rows = router_class(settings.router).rows_of_tasks()
    n_skills = settings.skills.n_skills if settings.skills.kind != "none" else 1
    shared = _shared(settings, run.skills)
    own = n_total = count_skills(n_skills, settings.router, len(run.tasks))
    names, skills, router = list(run.tasks), dict(run.skills), dict(run.router)
    heads = dict(run.heads)  # by id of the task
    texts = {name: dict(getattr(settings.data, name)) for name in BY_TASK}
    for new in adapted:
        form = read_settings(new, ModelSettings)
        if problem := next(_problems(run, new, settings, form), None):
            raise CheckpointError(
                f"'{new.folder}' cannot be added to the run: {problem}. Adapt with "
                "adapt.mode=router_only adapt.init=nearest_task, which trains only routing "
                "weights, or use the folder itself with mttl predict --adapted"
            )
        if set(names) & set(new.tasks):
            raise CheckpointError(
                f"'{new.folder}' has the task '{new.tasks[0]}', which is already in the run or "
                "among the added tasks; remove one"
            )
        row, in_front, behind = new.router, 0, n_total - own
        if not _equal(new.skills, run.skills):
            for name in skills.keys() - shared:
                skills[name] = torch.cat([skills[name], new.skills[name]])
            in_front, behind = n_total, 0
            router = _padded(router, rows, 0, own)
            n_total += own
        row = _padded(row, rows, in_front, behind)
        for name, place in rows.items():
            router[name] = torch.cat([router[name], row[name]], place.axis)
        for name, value in new.heads.items():
            heads[f"{len(names)}.{name.partition('.')[2]}"] = value
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
        heads=heads,
    )


def _shared(settings: ModelSettings, skills: Tensors) -> set[str]:
    """Return the names of tensors that belong to all skills of a layer together."""
    kinds = kinds_of(settings.skills)
    common = {name for one in kinds for name in one.part_class.common_parameters}
    return {name for name in skills if name.rpartition(".")[2] in common}


def _padded(tensors: Tensors, rows: Mapping[str, TaskRows], in_front: int, behind: int) -> Tensors:
    """Return a router's tensors with additional skills that its tasks do not use."""

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
    router, kind = settings.router, router_class(settings.router)
    rows = kind.rows_of_tasks()
    if not rows:
        yield f"routers of kind '{router.kind}' define no task_rows"
    if router_class(form.router) is not kind:
        yield f"its router is '{form.router.kind}', but the run's is '{router.kind}'"
    for name in _READ:
        own, theirs = (
            reduce(lambda section, key: getattr(section, key, None), name.split("."), part)
            for part in (form, settings)
        )
        if own != theirs:
            yield f"its {name} is {own}, but the run's is {theirs}"
    if not _equal(new.backbone or {}, run.backbone or {}):
        yield "adaptation also trained its backbone"
    common = [{k: v for k, v in part.router.items() if k not in rows} for part in (new, run)]
    if not _equal(*common):
        yield "adaptation changed the router's common parameters"
    shared, kinds = _shared(settings, run.skills), kinds_of(settings.skills)
    own, theirs = (
        {name: part.skills[name] for name in shared if name in part.skills} for part in (run, new)
    )
    reasons = {
        "all tasks share the same experts": settings.moe is not None
        or settings.aggregation.kind != "mixture",
        "all skills share a factor (shared_down)": getattr(settings.skills, "shared_down", False),
        "one of several kinds has parameters of all skills together": shared and len(kinds) > 1,
        "adaptation changed parameters of all skills together": not _equal(own, theirs),
        "skills with stages cannot be appended": any(getattr(one, "stages", None) for one in kinds),
        f"'{router.kind}' cannot have unused skills": all(
            place.unused is None for place in rows.values()
        ),
        "additional skills change the routing weights of every task (router.shared_skill, or "
        "router.normalise other than 'sum')": router.kind == "polytropon"
        and (router.shared_skill or router.normalise != "sum"),
    }
    if not _equal(new.skills, run.skills):
        yield from (f"its skills changed, and {reason}" for reason in reasons if reasons[reason])


def _equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )

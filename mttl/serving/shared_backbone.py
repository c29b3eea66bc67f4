"""Joins models that differ only in routing weights: their tasks share batches and memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mttl.inference.predictor import Predictor
from mttl.routing.task.fixed import GivenRows
from mttl.skills.skilled_model import SkilledModel


def share_backbone(predictors: Mapping[str, Predictor]) -> dict[str, Predictor]:
    """Return the model of every task, with as few different models as possible.

    Equal tensors of the models share memory already (`mttl.assembly.load_tasks`).
    """
    groups: dict[Any, dict[str, Predictor]] = {}
    for name, predictor in predictors.items():
        groups.setdefault(_all_but_rows(predictor), {})[name] = predictor
    joined: dict[str, Predictor] = {}
    for group in groups.values():
        several = len(set(map(id, group.values()))) > 1
        joined |= dict.fromkeys(group, _join(group)) if several else group
    return {name: joined[name] for name in predictors}


def _all_but_rows(predictor: Predictor) -> Any:
    """Return what models have in common that can be joined."""
    model, router = predictor.model, predictor.model.router
    # Layers that route tokens, and routers that see prompts, read more of a router than its rows.
    if model.routes_tokens or "prompts" in router.seen:
        return id(predictor)
    form = predictor.form.model_copy(update={"task_descriptions": {}})
    places = tuple(
        (name, tensor.data_ptr())
        for name, tensor in model.backbone.state_dict(keep_vars=True).items()
    )
    common = (
        places,
        form.model_dump_json(),
        tuple(sorted(predictor.search.items())),
        type(predictor.precision),
        getattr(predictor.precision, "dtype", None),
        (router.n_groups, router.n_heads, router.n_skills),
    )
    known = torch.arange(router.n_tasks, device=predictor.device)
    with torch.no_grad():
        by_rows = torch.equal(model.eval().router.mix(known), router.matrix())
    return common if by_rows else id(predictor)


def _join(group: Mapping[str, Predictor]) -> Predictor:
    first = next(iter(group.values()))
    rows = [
        predictor.model.router.matrix()[:, predictor.task_ids([name]).to(predictor.device)]
        for name, predictor in group.items()
    ]
    known = {name: predictor.form.task_descriptions for name, predictor in group.items()}
    descriptions = {name: own[name] for name, own in known.items() if name in own}
    router = GivenRows(torch.cat(rows, dim=1))
    return replace(
        first,
        model=SkilledModel(first.model.backbone, router, first.model.slot),
        tasks=tuple(group),
        form=first.form.model_copy(update={"task_descriptions": descriptions}),
    )

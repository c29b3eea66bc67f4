"""Build the heads of tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mttl.config.backbone_schema import Heads
from mttl.config.schema import Config
from mttl.config.skills_schema import kinds_of
from mttl.heads.head import Head
from mttl.heads.label_head import LabelHead
from mttl.heads.task_heads import TaskHeads
from mttl.heads.token_head import TokenHead
from mttl.heads.tree_head import TreeHead
from mttl.io.errors import ConfigError, TaskError
from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.tasks.head_form import HeadForm


def task_heads(gym: Gym, tasks: Sequence[str], config: Config | None = None) -> dict[str, HeadForm]:
    """Return the heads or raw text of tasks; empty if all generate their answers.

    Raises a `TaskError` if they are of different sorts, and a `ConfigError` if heads do not work
    with the configuration.
    """
    found = {task: gym.head(task) for task in tasks}
    first, *others = ((task, _sort(form)) for task, form in found.items())
    for task, sort in others:
        if sort != first[1]:
            raise TaskError(f"'{first[0]}' {first[1]}, but '{task}' {sort}; train them in two runs")
    heads = {task: form for task, form in found.items() if form is not None}
    if heads and config is not None:
        check_heads(config, heads)
    return heads


def _sort(form: HeadForm | None) -> str:
    if form is None:
        return "has no head (kind: tokens, label or tree)"
    return "is raw text (kind: text)" if form.kind == "text" else "has a head"


def check_heads(config: Config, heads: Mapping[str, HeadForm]) -> None:
    """Raise a `ConfigError` for settings that do not work with heads, or with raw text."""
    data, adapt = config.data, config.adapt
    points = {one.part_class.attachment_point: one.kind for one in kinds_of(config.skills)}
    prompts = [points[point] for point in ("embedding", "attention") if point in points]
    sort = "raw text" if any(form.kind == "text" for form in heads.values()) else "heads"
    conflicts = {
        "data.template: chat": data.template == "chat",
        "data.truncate: start": data.truncate == "start",
        "generation.mode: rank": config.generation.mode == "rank",
        "adapt.mode: in_context": adapt.mode == "in_context",
        "adapt.unlikelihood and adapt.length_normalised": bool(adapt.option_weights),
    }
    if sort == "heads":
        conflicts |= {
            "data.packed_length": data.packed_length is not None,
            f"skills.kind: {' and '.join(prompts)}": bool(prompts),
            "router.consistency": bool(getattr(config.router, "consistency", 0)),
            "optim.label_smoothing": config.optim.label_smoothing > 0,
            "optim.separate": config.optim.separate,
            "optim.divergence": config.optim.divergence is not None,
            "a custom loss": config.loss is not None,
            "adapt.gradient_free": adapt.gradient_free,
        }
    else:
        conflicts["data.descriptions"] = data.descriptions
    if found := [name for name, given in conflicts.items() if given]:
        raise ConfigError(f"tasks with {sort} do not work with {', '.join(found)}; remove it")


def build_heads(
    forms: Mapping[str, HeadForm], tasks: Sequence[str], settings: Heads, backbone: nn.Module
) -> TaskHeads | None:
    """Return new heads of tasks, or None without forms and for raw text.

    Raises a `ConfigError` if the backbone cannot answer without heads, or predict masked tokens.
    """
    if not forms:
        if is_encoder(backbone):
            raise ConfigError(
                f"a {type(backbone).__name__} generates no answers; give all tasks a head (kind: "
                "tokens, label or tree), or use a backbone with a decoder"
            )
        return None
    if any(form.kind == "text" for form in forms.values()):
        if is_encoder(backbone) and backbone.get_output_embeddings() is None:  # type: ignore
            raise ConfigError(
                f"a {type(backbone).__name__} has no trained output layer for masked tokens, which "
                "raw text needs; use the checkpoint of a masked language model"
            )
        return None
    features = int(backbone.get_input_embeddings().weight.shape[1])  # type: ignore
    pool: str = settings.pool
    if pool == "auto":
        pool = "first" if is_encoder(backbone) else "last" if is_decoder_only(backbone) else "mean"
    heads = [_build(forms[task], features, settings, pool) for task in tasks]
    return TaskHeads(heads).to(backbone.device)  # type: ignore


def _build(form: HeadForm, features: int, settings: Heads, pool: str) -> Head:
    labels, dropout = form.labels, settings.dropout
    if form.kind == "tokens":
        return TokenHead(features, labels, dropout=dropout)
    if form.kind == "label":
        own = {"pool": pool, "dense": settings.dense, "dropout": dropout}
        return LabelHead(features, labels, bias=pool != "last", **own)  # as transformers
    sizes = {name: getattr(settings, name) for name in ("arc_features", "relation_features")}
    return TreeHead(features, labels, **sizes, dropout=dropout)


def new_heads(model: SkilledModel, form: HeadForm | None, settings: Heads, task: str) -> Any:
    """Return the head of a new task, or None for a model without heads.

    It is a copy of the first trained head of the same kind with the same labels, if there is one,
    else untrained. Raises a `TaskError` if either the task or the model has no head.
    """
    made = build_heads({task: form} if form else {}, [task], settings, model.backbone)
    if (made is None) is not (model.heads is None):
        ours, theirs = ("no head", "heads") if made is None else ("a head", "none")
        raise TaskError(
            f"'{task}' has {ours}, but the run's tasks have {theirs}; adapt a run whose tasks have "
            "the same kinds"
        )
    if form is None or made is None or model.heads is None:
        return None
    for known in model.heads.of_task:
        if type(known) is type(made.of_task[0]) and known.labels == form.labels:
            made.load_state_dict(TaskHeads([known]).state_dict())
            break
    return made

"""A small model of every shipped fragment, far from its initialisation."""

import torch
from torch import Tensor

from helpers.backbones import batch, fill
from mttl.adaptation.modes import parts_by_role
from mttl.assembly.model import Built, build_model
from mttl.config.load import configs_dir, load_config
from mttl.config.schema import Config

# Tasks of different families, which the shipped matrix of the Expert baseline knows.
TASKS = ("verb_past", "noun_plural", "ordinal", "date_en")
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1}
# What a fragment needs besides: gates that filled logits switch, layers that it names, and factors
# of these tasks.
BESIDES = {
    "skills/head_mask.yaml": ["skills.start=0.01"],
    "skills/s4.yaml": ["backbone.config.num_layers=3", "backbone.config.num_decoder_layers=2"],
    "router/metadata_grid.yaml": [
        f"router.factors.{task}=[kind={index % 2}, task={task}]" for index, task in enumerate(TASKS)
    ],
}


def fragments(room: str) -> list[str]:
    """Return the fragments of a folder of `configs`, as a command names them."""
    folder = configs_dir()
    return [path.relative_to(folder).as_posix() for path in sorted(folder.glob(f"{room}/*.yaml"))]


def small(settings: dict[str, int]) -> list[str]:
    return [f"backbone.config.{name}={value}" for name, value in settings.items()]


def frozen_config(fragment: str, *overrides: str) -> Config:
    """Return the configuration of a fragment on a small frozen backbone with random weights."""
    settings = [*small(T5), "backbone.train=false", *BESIDES.get(fragment, []), *overrides]
    return load_config(f"crossfit.yaml+backbone/tiny_t5.yaml+{fragment}", settings)


def trained(config: Config) -> tuple[Built, Tensor]:
    """Return a model that is far from its initialisation, and the logits it started with."""
    built = build_model(config, TASKS)
    before = logits(built)
    parts = parts_by_role(built.model)
    for seed, part in enumerate((*parts["router"], *parts["skills"]), start=1):
        fill(part, seed)
    if config.backbone.train:
        fill(built.model.backbone)
    return built, before


@torch.no_grad()
def logits(built: Built) -> Tensor:
    return built.model.eval()(built.task_ids(TASKS), **batch(len(TASKS))).logits

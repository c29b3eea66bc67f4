"""Builds the policies of all levels from a configuration or a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.vocabulary import count_tokens
from mttl.assembly.build_router import build_router, count_skills
from mttl.assembly.saved_settings import read_settings
from mttl.babyai.policy import Policy
from mttl.babyai.position_experts import add_experts
from mttl.checkpoints.saved_inventory import load_into, read_inventory
from mttl.config.babyai_schema import BabyAIConfig, PolicyNetwork, PolicySkills
from mttl.config.moe_schema import AnyMoE
from mttl.config.section import Section
from mttl.config.skills_schema import Router
from mttl.io.errors import ConfigError, raised_as
from mttl.skills.composed.composed_model import ComposedModel, ModuleInventory


class PolicySettings(Section):
    """The settings of policies; see `BabyAIConfig`."""

    policy: PolicyNetwork
    train_base: bool
    skills: PolicySkills
    router: Router
    moe: AnyMoE | None = None


def build_policies(config: BabyAIConfig, levels: Sequence[str]) -> ComposedModel:
    """Return common parameters, skills and router of some levels, in training mode."""
    return _assemble(policy_settings(config), levels, count_tokens(levels)).train()


def load_policies(
    folder: str | Path, run: str | Path | None = None
) -> tuple[ComposedModel, tuple[str, ...]]:
    """Return the trained policies of a run, in evaluation mode, and the names of their levels.

    Those of an adapted level are combined with ``run``, the current folder of its run.
    """
    saved = read_inventory(folder, run)
    settings = read_settings(saved, PolicySettings)
    assert saved.backbone is not None
    n_tokens = len(saved.backbone["words.weight"])  # also of the levels of an adapted level's run
    model = _assemble(settings, saved.tasks, n_tokens, trained=True)
    load_into(model, saved)
    return model.eval(), saved.tasks


def fresh_policies(folder: str | Path, levels: Sequence[str]) -> ComposedModel:
    """Return untrained policies with the settings of a run, in training mode."""
    settings = read_settings(read_inventory(folder), PolicySettings)
    return _assemble(settings, levels, count_tokens(levels)).train()


def policy_settings(config: BabyAIConfig) -> PolicySettings:
    """Return the settings of policies, which are saved with them."""
    rl = config.rl
    own = {name: getattr(config, name) for name in ("skills", "router", "moe")}
    return PolicySettings(policy=rl.policy, train_base=rl.train_base, **own)


def network_arguments(network: PolicyNetwork, n_tokens: int) -> dict[str, Any]:
    """Return the arguments of `Policy`."""
    sizes = {"n_tokens": n_tokens, "word_size": network.instruction_size}
    return {**sizes, **network.model_dump()}


def _assemble(
    settings: PolicySettings, levels: Sequence[str], n_tokens: int, *, trained: bool = False
) -> ComposedModel:
    network, skills, router = settings.policy, settings.skills, settings.router
    policy = Policy(**network_arguments(network, n_tokens))
    n_skills = count_skills(skills.n_skills, router, len(levels))
    inventory = ModuleInventory(
        policy,
        n_skills,
        # A policy has no blocks or stacks; the finest granularity is the layer.
        granularity="model" if router.granularity == "model" else "layer",
        **skills.model_dump(exclude={"n_skills", "n_heads"}),
    )
    task_router = build_router(router, inventory.n_groups, levels, 1, n_skills, trained=trained)
    model = ComposedModel(policy, inventory, task_router, train_base=settings.train_base)
    if settings.moe is not None:
        with raised_as(ConfigError, "section moe", ValueError):
            add_experts(model, settings.moe)
    return model

"""Settings of a BabyAI policy; sections shared with text-to-text tasks are in `schema`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, Union

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, ValidationInfo

from mttl.config.capabilities import asked_features, missing_features
from mttl.config.moe_schema import AnyMoE
from mttl.config.optim_schema import Optim
from mttl.config.plugin_section import PartSection, part_models, plugin_name
from mttl.config.schema import Run, Search, Trainer
from mttl.config.section import AdaptMode, Section, Seeds, once
from mttl.config.skills_schema import COUNTS, Router
from mttl.plugins.classes import LEVELS, SKILLS
from mttl.plugins.part_settings import Fraction, NonNegative, Seed


def _imported(name: str, info: ValidationInfo) -> str:
    return plugin_name(LEVELS)(name, info) if ":" in name else name


Level = Annotated[str, AfterValidator(_imported)]
Unit = Annotated[float, Field(ge=0, le=1)]


class PolicyNetwork(Section):
    """The network of one policy."""

    n_channels: PositiveInt = 128
    """Channels of the convolutions; also the number of features per grid cell."""
    memory_size: PositiveInt = 128
    """Size of the recurrent memory."""
    instruction_size: PositiveInt = 128
    """Size of the mission's embedding."""
    norm: Literal["group", "batch", "none"] = "group"
    """Normalisation: `group` of channels, `batch` statistics without running averages, or
    `none`."""
    init: Literal["kaiming", "babyai"] = "kaiming"
    """Initialisation: `kaiming` uniform, or `babyai`: linear rows of unit length as in BabyAI's
    code."""


class Ppo(Section):
    """Proximal policy optimisation (PPO); the defaults are those of BabyAI."""

    refuses: ClassVar = {
        "n_steps % recurrence": "n_steps ({n_steps}) must be a multiple of recurrence "
        "({recurrence})"
    }
    n_steps: PositiveInt = 40
    """Steps per environment between two updates."""
    recurrence: PositiveInt = 20
    """Length of truncated backpropagation through the memory, in steps."""
    n_epochs: PositiveInt = 4
    """Passes over each rollout."""
    n_minibatches: PositiveInt = 2
    """Minibatches per pass."""
    discount: Unit = 0.99
    """Discount factor γ of rewards."""
    gae_lambda: Unit = 0.99
    """λ of generalised advantage estimation."""
    clip: PositiveFloat = 0.2
    """Clipping range of the policy ratio and of the value predictions."""
    value_coef: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus."""
    reward_scale: PositiveFloat = 20.0
    """Factor on the rewards."""


class Imitation(Section):
    """Behaviour cloning of demonstrations; it also backpropagates `ppo.recurrence` steps."""

    batch_size: PositiveInt = 16
    """Demonstrations per level, batch and process."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus."""


class Evaluation(Section):
    """Evaluation on fixed episodes of each level, identical for all runs."""

    n_episodes: PositiveInt = 100
    """Episodes per level."""
    max_steps: PositiveInt | None = None
    """Steps after which an episode ends without success; by default the limit of its level."""
    choose: list[Literal["greedy", "sampled"]] = Field(default=["greedy", "sampled"])
    """Action selection: `greedy` takes the most probable action, `sampled` draws one."""
    seed: Seed = 1
    """Seed of the episodes, which are disjoint from those of training."""


class Rl(Section):
    """Levels, environments and learning algorithm of a policy."""

    asks: ClassVar = {"plays": "playing"}
    refuses: ClassVar = {
        "n_sequences % ppo.n_minibatches": "ppo.n_minibatches ({ppo.n_minibatches}) must "
        "divide the {self.n_sequences} sequences of a level's rollout (n_slots × ppo.n_steps / "
        "ppo.recurrence)",
        "backend = envpool and n_workers": "n_workers must be 0 with backend 'envpool'",
        "n_workers > n_slots and not global_n_slots": "n_workers ({n_workers}) must not exceed "
        "n_slots ({n_slots})",
        "n_workers > global_n_slots": "n_workers ({n_workers}) must not exceed global_n_slots "
        "({global_n_slots})",
        "demonstrations and stop_when_solved": "stop_when_solved must be false with demonstrations",
    }
    levels: Annotated[list[Level], Field(min_length=1), AfterValidator(once)]
    """Levels to train on: names of BabyAI's levels, ids of gymnasium, or `module:Class`."""
    backend: Literal["minigrid", "envpool"] = "minigrid"
    """Environment library; `envpool` is faster and needs the extra `envpool`."""
    n_slots: PositiveInt = 8
    """Environments per level and process."""
    global_n_slots: PositiveInt | None = None
    """Environments per level over all processes; replaces `n_slots`, which then follows from the
    number of processes."""
    n_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that step the environments; 0 steps them in the training process."""
    policy: PolicyNetwork = PolicyNetwork()
    """Policy network."""
    train_base: bool = True
    """Train the parameters that all levels share; if false, only the skills are trained."""
    ppo: Ppo = Ppo()
    """Settings of reinforcement learning."""
    demonstrations: str | None = None
    """File of `mttl babyai record` to learn from; no environments are used for training."""
    imitation: Imitation = Imitation()
    """Settings of imitation learning."""
    success_rate: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Success rate over the last `window` episodes above which a level counts as solved."""
    window: PositiveInt = 100
    """Episodes over which the success rate is measured."""
    stop_when_solved: bool = False
    """Stop training when every level is solved."""
    evaluation: Evaluation = Evaluation()
    """Evaluation after training."""

    @property
    def playing(self) -> list[str]:
        """The section of the algorithm that plays episodes, if any does."""
        return [] if self.demonstrations else ["ppo"]

    @property
    def n_sequences(self) -> int:
        """Number of sequences in a level's rollout, of one process."""
        return (self.global_n_slots or self.n_slots) * self.ppo.n_steps // self.ppo.recurrence


class _AnyPolicySkills(Section):
    n_skills: PositiveInt | Literal["per_task"] = 9
    """Number of skills; `per_task` is for the private router. With the c_poly router: the number of
    skills that all levels share."""
    n_heads: Literal[1] = 1
    """Number of heads; always 1, because whole parameters are mixed."""
    init: Literal["kaiming", "zero"] = "kaiming"
    """Initialisation: `kaiming` as for a new network, or `zero` (no effect at first)."""


class PolicyDense(_AnyPolicySkills):
    """Skills that change every parameter."""

    kind: Literal["dense"]


class PolicySparse(_AnyPolicySkills):
    """Skills that change a fixed random part of the parameters."""

    kind: Literal["sparse"]
    sparsity: Fraction = 0.9
    """Fraction of each tensor that a skill does not change."""


class PolicyLoRA(_AnyPolicySkills):
    """Low-rank skills: each change of a matrix is the product of two thin matrices."""

    kind: Literal["lora"]
    rank: PositiveInt = 16
    """Rank of each skill."""


if TYPE_CHECKING:
    PolicySkills: TypeAlias = PolicyDense | PolicySparse | PolicyLoRA | PartSection
else:
    _parts = part_models(replace(SKILLS, name="policy_skills"), _AnyPolicySkills)
    PolicySkills = Annotated[
        Union[PolicyDense, PolicySparse, PolicyLoRA, *_parts], Field(discriminator="kind")
    ]


class PolicyAdapt(Section):
    """Adaptation to levels that were not trained on."""

    refuses: ClassVar = {
        "mode = in_context": "mode 'in_context' needs text examples, which levels do not have; use "
        "'zero_shot'"
    }
    levels: list[Level] = Field(default=[])
    """Levels to adapt to, named as in `rl.levels`; `mttl adapt --tasks` replaces them."""
    mode: AdaptMode = "all"
    """What is trained: `all`: skills and routing weights; `router_only`; `skills_only`; `full`:
    also the base policy; `average`: skills with equal routing weights; `from_scratch`:
    re-initialised skills and router; `zero_shot`: nothing."""
    init: Literal["mean", "fresh"] = "mean"
    """Initial routing of a new level: the mean of the trained levels, or a fresh initialisation."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and in mode `full` also of the base policy."""
    router_lr: PositiveFloat = 1e-2
    """Learning rate of the router."""
    n_updates: PositiveInt = 100
    """Rollouts per adaptation, or passes over the demonstrations."""
    seeds: Seeds = Field(default=[13])
    """Seeds; every level is adapted once with each."""


class PolicySearch(Search):
    """Settings of adaptation (`adapt.`) or training (`optim.`) that `mttl search` varies."""

    adapt: ClassVar = PolicyAdapt


class BabyAIConfig(Section):
    """All sections of a BabyAI run."""

    refuses: ClassVar = {
        **COUNTS,
        "optim.meta": "optim.meta needs text-to-text tasks; remove it for a policy",
        "router.granularity = stack|block": "router.granularity ({router.granularity}) must be "
        "model or layer: a policy has no stacks of blocks",
        "optim.label_smoothing": "optim.label_smoothing must be 0: a policy has no labels",
        "trainer.max_epochs = None|-1": "trainer.max_epochs must be set: the number of rollouts, "
        "or of passes over the demonstrations",
        "trainer.strategy = fsdp2": "trainer.strategy 'fsdp2' is for language models; use auto or "
        "ddp",
        **{
            clause: f"{clause.split()[0]} is only for text-to-text tasks; remove it"
            for clause in (
                "optim.separate",
                *("run.start", "trainer.val_check_interval", "trainer.early_stopping"),
                "trainer.accumulate_grad_batches > 1",
            )
        },
    }
    run: Run = Run()
    """Name, folder and seed."""
    rl: Rl
    """Levels, environments and learning algorithm."""
    skills: PolicySkills
    """The inventory."""
    router: Router
    """Assignment of skills to levels."""
    moe: AnyMoE | None = None
    """Experts beside the FiLM blocks, in addition to skills; each grid position is a token."""
    optim: Optim
    """Optimizer and learning rates."""
    adapt: PolicyAdapt = PolicyAdapt()
    """Adaptation to new levels."""
    search: PolicySearch = PolicySearch()
    """Hyperparameter search; by default empty."""
    trainer: Trainer
    """Training loop; an epoch is one rollout, or one pass over the demonstrations."""

    def problems(self) -> Iterator[str]:
        """Yield one sentence per conflict between settings."""
        yield from super().problems()
        yield from missing_features(
            self, asked_features(self) | {"policies": "a policy (section rl)"}
        )

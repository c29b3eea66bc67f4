"""Every setting of a policy for BabyAI; the sections that both worlds share are in `schema`."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from mttl.config.capabilities import missing_features
from mttl.config.optim_schema import Optim
from mttl.config.schema import Run, Trainer
from mttl.config.section import AdaptMode, Section, Seeds, once
from mttl.config.skills_schema import COUNTS, Router
from mttl.plugins.part_settings import Fraction, NonNegative, Seed

Unit = Annotated[float, Field(ge=0, le=1)]


class PolicyNetwork(Section):
    """The network of one policy."""

    n_channels: PositiveInt = 128
    """Channels of the convolutions, and features of a cell."""
    memory_size: PositiveInt = 128
    """Size of the memory."""
    instruction_size: PositiveInt = 128
    """Size of the embedded mission."""
    norm: Literal["group", "batch", "none"] = "group"
    """Normalise groups of channels, or by the statistics of the batch (no running averages)."""
    init: Literal["kaiming", "babyai"] = "kaiming"
    """Kaiming uniform, or linear layers with rows of unit length as in BabyAI's code."""


class Ppo(Section):
    """Proximal policy optimisation; the defaults are BabyAI's."""

    refuses: ClassVar = {
        "n_steps % recurrence": "n_steps ({n_steps}) must be a multiple of recurrence "
        "({recurrence})"
    }
    n_steps: PositiveInt = 40
    """Steps of every environment between two updates."""
    recurrence: PositiveInt = 20
    """Steps that gradients flow back through the memory."""
    n_epochs: PositiveInt = 4
    """Passes over each rollout."""
    n_minibatches: PositiveInt = 2
    """Parts that each pass is cut into."""
    discount: Unit = 0.99
    """γ: weight of a reward one step later."""
    gae_lambda: Unit = 0.99
    """λ: decay of the advantages' horizon."""
    clip: PositiveFloat = 0.2
    """How far the policy's ratio and the values may move in one update."""
    value_coef: NonNegative = 0.5
    """Weight of the loss of the values."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy."""
    reward_scale: PositiveFloat = 20.0
    """Factor on the rewards."""


class Imitation(Section):
    """Behaviour cloning of demonstrations; gradients flow back `ppo.recurrence` steps here too."""

    batch_size: PositiveInt = 16
    """Demonstrations of every level in a batch, in every process."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy."""


class Evaluation(Section):
    """Fixed episodes of every level, the same for all runs."""

    n_episodes: PositiveInt = 100
    """Episodes of every level."""
    choose: list[Literal["greedy", "sampled"]] = Field(default=["greedy", "sampled"])
    """Take the most likely action, or draw one."""
    seed: Seed = 1
    """Of the episodes; they are never met in training."""


class Rl(Section):
    """Levels, environments and how a policy learns in them."""

    refuses: ClassVar = {
        "n_sequences % ppo.n_minibatches": "ppo.n_minibatches ({ppo.n_minibatches}) must "
        "divide the {self.n_sequences} sequences of a level's rollout (n_slots × ppo.n_steps / "
        "ppo.recurrence)",
        "backend = envpool and n_workers": "n_workers must be 0 with backend 'envpool'",
        "n_workers > n_slots": "n_workers ({n_workers}) must not exceed n_slots ({n_slots})",
        "demonstrations and stop_when_solved": "stop_when_solved must be false with demonstrations",
    }
    levels: Annotated[list[str], Field(min_length=1), AfterValidator(once)]
    """Levels to train on; each is a task."""
    backend: Literal["minigrid", "envpool"] = "minigrid"
    """Whose environments; envpool is faster and needs the extra of that name."""
    n_slots: PositiveInt = 8
    """Environments of every level, in every process."""
    n_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that step the environments; 0 steps them in the training process."""
    policy: PolicyNetwork = PolicyNetwork()
    """The network."""
    train_base: bool = True
    """Train the common part of all policies too; false leaves nothing shared but the skills."""
    ppo: Ppo = Ppo()
    """How to learn from rewards."""
    demonstrations: str | None = None
    """Learn from this file of `mttl babyai record` instead, without environments."""
    imitation: Imitation = Imitation()
    """How to learn from demonstrations."""
    success_rate: Annotated[float, Field(gt=0, le=1)] = 0.99
    """A level is solved when this part of its last episodes succeeded."""
    window: PositiveInt = 100
    """How many last episodes count for that."""
    stop_when_solved: bool = False
    """End training when every level has been solved."""
    evaluation: Evaluation = Evaluation()
    """What is scored after training."""

    @property
    def n_sequences(self) -> int:
        """Sequences of a level's rollout."""
        return self.n_slots * self.ppo.n_steps // self.ppo.recurrence


class _AnyPolicySkills(Section):
    n_skills: PositiveInt | Literal["per_task"] = 9
    """How many skills; `per_task` is for the private router. With the c_poly router those that all
    levels share."""
    n_heads: Literal[1] = 1
    """Whole parameters are mixed: there is one head."""
    init: Literal["kaiming", "zero"] = "kaiming"
    """Skills start as random networks do, or change nothing at first."""


class PolicyDense(_AnyPolicySkills):
    """Skills that change every parameter."""

    kind: Literal["dense"]


class PolicySparse(_AnyPolicySkills):
    """Skills that change a fixed random part of the parameters."""

    kind: Literal["sparse"]
    sparsity: Fraction = 0.9
    """Part of every tensor that a skill leaves alone."""


class PolicyLoRA(_AnyPolicySkills):
    """Skills that change matrices by products of thin ones."""

    kind: Literal["lora"]
    rank: PositiveInt = 16
    """Rank of each skill."""


PolicySkills = Annotated[PolicyDense | PolicySparse | PolicyLoRA, Field(discriminator="kind")]


class PolicyAdapt(Section):
    """Adaptation to levels that were not trained on."""

    refuses: ClassVar = {
        "mode = in_context": "mode 'in_context' shows rows of text, and a level has none; use "
        "'zero_shot'"
    }
    levels: list[str] = Field(default=[])
    """Those levels; `mttl adapt --tasks` names others."""
    mode: AdaptMode = "all"
    """What to train; see `mttl.adaptation.modes`."""
    init: Literal["mean", "fresh"] = "mean"
    """How the routing of a new level starts: at the mean of the trained ones, or untrained."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills, and of the common part in the mode `full`."""
    router_lr: PositiveFloat = 1e-2
    """Learning rate of the router."""
    n_updates: PositiveInt = 100
    """Rollouts of each adaptation, or passes over the demonstrations."""
    seeds: Seeds = Field(default=[13])
    """Every level is repeated with each."""


class BabyAIConfig(Section):
    """All sections of a run with a policy."""

    refuses: ClassVar = {
        **COUNTS,
        "optim.meta": "optim.meta learns from rows of tasks, which only text has; remove it",
        "router.granularity = stack|block": "router.granularity ({router.granularity}) must be "
        "model or layer: a policy has no stacks of blocks",
        "optim.label_smoothing": "optim.label_smoothing must be 0: a policy has no labels",
        "trainer.max_epochs = None|-1": "trainer.max_epochs must say how many rollouts, or passes "
        "over the demonstrations, to learn from",
        "trainer.strategy = fsdp2": "trainer.strategy (fsdp2) shards the blocks of language models",
        **{
            clause: f"{clause.split()[0]} is for text-to-text tasks: leave it out"
            for clause in (
                *("run.start", "trainer.val_check_interval", "trainer.early_stopping"),
                "trainer.accumulate_grad_batches > 1",
            )
        },
    }
    run: Run = Run()
    """Name, folder, seed."""
    rl: Rl
    """Levels, environments, how to learn."""
    skills: PolicySkills
    """The inventory."""
    router: Router
    """Which level uses which skills."""
    optim: Optim
    """Optimizer and learning rates."""
    adapt: PolicyAdapt = PolicyAdapt()
    """Adaptation to new levels."""
    trainer: Trainer
    """The training loop; an epoch is a rollout, or a pass over the demonstrations."""

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together, a sentence each."""
        yield from super().problems()
        yield from missing_features(self, {"policies": "a policy (section rl)"})

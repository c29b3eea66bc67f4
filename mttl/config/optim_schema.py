"""Section `optim`: optimizer, learning rates and schedule."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from mttl.config.data_schema import TaskName
from mttl.config.section import Section
from mttl.plugins.part_settings import Fraction, NonNegative


class Meta(Section):
    """Meta-learning over tasks instead of multi-task learning; each batch has one task."""

    kind: Literal["maml", "reptile"]
    """Algorithm: first-order MAML, or Reptile."""
    inner_steps: PositiveInt = 1
    """Inner steps per task; MAML splits a batch in half, Reptile into one part per step."""
    inner_lr: PositiveFloat = 1e-2
    """Learning rate of the inner steps (plain gradient descent)."""

    @property
    def n_parts(self) -> int:
        """Number of parts of a batch."""
        return 2 if self.kind == "maml" else self.inner_steps

    lacks: ClassVar = {
        "packs": "meta-learning splits batches by rows; remove data.packed_length",
        "counts_rows": "each batch has one task; instead of data.global_batch_size set "
        "data.batch_size (rows per task) and trainer.accumulate_grad_batches (tasks per step)",
        "shards": "inner steps need unsharded parameters; set trainer.strategy: auto or ddp",
        "scales_losses": "inner steps do not scale losses; set trainer.precision: bf16-mixed",
        "routes_tokens": "inner steps would change the expert loads; remove optim.meta",
    }


class TaskOptim(Section):
    """Settings of one task that is trained separately."""

    lr: PositiveFloat | None = None
    """Learning rate of the task's skill; by default `optim.lr`."""
    steps: PositiveInt | None = None
    """Steps of the task, and the length of its schedule; by default all steps of the training."""


class Divergence(Section):
    """Penalty on the divergence of the predicted tokens from those of a fixed model."""

    weight: PositiveFloat
    """Weight of KL(fixed ‖ trained), a mean over answer tokens, in the training loss."""
    reference: str | None = None
    """Run folder of the fixed model; by default the weights at the start of training."""
    lacks: ClassVar = {
        "shards": "the fixed model is not sharded; set trainer.strategy: auto or ddp",
        "shares_experts": "the fixed model has all experts; set moe.parallel: false",
        "compiles": "the fixed model is not compiled; set backbone.compile: false",
    }


class _AnyOptim(Section):
    refuses: ClassVar = {
        "tasks and not separate": "tasks needs separate: true",
        "warmup > 1 and warmup % 1": "warmup ({warmup}) must be below 1 (a fraction) or a whole "
        "number of steps",
    }
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills."""
    router_lr: PositiveFloat | None = None
    """Learning rate of the router; by default `lr`."""
    backbone_lr: PositiveFloat | None = None
    """Learning rate of a trained backbone; by default `lr`."""
    token_router_lr: PositiveFloat | None = None
    """Learning rate of token routers and of fusion attention; by default `lr`."""
    heads_lr: PositiveFloat | None = None
    """Learning rate of task heads; by default `lr`."""
    up_lr_ratio: PositiveFloat = 1.0
    """Learning-rate ratio of the second to the first low-rank factor (LoRA+)."""
    weight_decay: NonNegative = 0.01
    """Weight decay of matrices; not applied to the router."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Schedule of the learning rates after the warm-up."""
    warmup: NonNegative = 0.06
    """Steps of linear warm-up; below 1: fraction of all steps."""
    label_smoothing: Fraction = 0.0
    """Label smoothing of the training loss."""
    divergence: Divergence | None = None
    """Penalty on the divergence from a fixed model, as in Quark."""
    separate: bool = False
    """Train the skill of each task as in a run of its own (private router): each step has the same
    number of rows of every task, the loss is a mean per task, gradients are clipped by task, and
    each task keeps its best validated step."""
    tasks: dict[TaskName, TaskOptim] = {}
    """Learning rate and steps by task, such as `mood: {lr: 1e-3, steps: 200}`; the others have
    those of the run."""
    meta: Meta | None = None
    """Meta-learning; `trainer.accumulate_grad_batches` sets the number of tasks per step."""


class _AdamLike(_AnyOptim):
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    """Decay rates of the two moments."""
    eps: PositiveFloat = 1e-8
    """Constant added to the denominator."""


class AdamW(_AdamLike):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]


class Adam(_AdamLike):
    """Adam; weight decay is part of the gradient."""

    kind: Literal["adam"]


class Adafactor(_AnyOptim):
    """Adafactor: factored second moments."""

    kind: Literal["adafactor"]
    lacks: ClassVar = {
        "shards": "it averages over axes that fsdp2 shards; set optim.kind: adamw or adam",
        "shares_experts": "its updates need unsharded tensors; set optim.kind: adamw or adam",
    }
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Exponent of the second moment's decay."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Upper limit of the update's root mean square."""
    smallest_scale: PositiveFloat = 1.0
    """Minimum scale of relative updates. Skills and logits start near zero, where Adafactor's own
    1e-3 would make learning very slow."""


Optim = Annotated[AdamW | Adam | Adafactor, Field(discriminator="kind")]

"""The section `optim`: optimizers, learning rates and their schedule."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from mttl.config.section import Section
from mttl.plugins.part_settings import Fraction, NonNegative


class Meta(Section):
    """Meta-learning over tasks, in the place of multi-task learning: batches of one task each."""

    kind: Literal["maml", "reptile"]
    """First-order MAML, or Reptile."""
    inner_steps: PositiveInt = 1
    """Steps on each task: MAML's on half of a batch, Reptile's on a part of it each."""
    inner_lr: PositiveFloat = 1e-2
    """Rate of these steps, which are plain gradient descent."""

    @property
    def n_parts(self) -> int:
        """Parts that a batch is cut into."""
        return 2 if self.kind == "maml" else self.inner_steps

    lacks: ClassVar = {
        "packs": "it cuts batches by rows; leave data.packed_length out",
        "counts_rows": "its losses are those of one task; set data.batch_size, and the tasks of a "
        "step by trainer.accumulate_grad_batches",
        "shards": "its inner steps move whole parameters; use trainer.strategy auto or ddp",
        "scales_losses": "its inner steps do not scale losses; use another, such as bf16-mixed",
        "routes_tokens": "it takes several steps within one, by which loads would be counted",
    }


class _AnyOptim(Section):
    refuses: ClassVar = {
        "warmup > 1 and warmup % 1": "warmup ({warmup}) must be below 1 (a fraction) or a whole "
        "number of steps"
    }
    lr: PositiveFloat = 1e-3
    """Learning rate of the skills: the slow one."""
    router_lr: PositiveFloat | None = None
    """Learning rate of the router: the fast one; `lr` by default."""
    backbone_lr: PositiveFloat | None = None
    """Learning rate of a trained backbone; `lr` by default."""
    token_router_lr: PositiveFloat | None = None
    """Learning rate of routers of tokens, the attention of a fusion included; `lr` by default."""
    up_lr_ratio: PositiveFloat = 1.0
    """Rate of the second factors of low-rank skills over that of the first (LoRA+)."""
    weight_decay: NonNegative = 0.01
    """Of matrices; never of the router."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Schedule of the learning rates after the warm-up."""
    warmup: NonNegative = 0.06
    """Steps of linear warm-up; below 1, a fraction of all steps."""
    label_smoothing: Fraction = 0.0
    """Of the training loss."""
    meta: Meta | None = None
    """Meta-learning; `trainer.accumulate_grad_batches` says how many tasks a step has."""


class _AdamLike(_AnyOptim):
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    """Decay of the two moments."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""


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
        "shards": "it takes means over axes that are spread over processes; use adamw or adam",
        "shares_experts": "its updates depend on whole tensors; use adamw or adam",
    }
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Exponent of the second moment's decay."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Bound of the update's root mean square."""
    smallest_scale: PositiveFloat = 1.0
    """Rates are relative to a tensor's root mean square, and to this where it is smaller: skills
    and logits start near zero, and Adafactor's own 1e-3 would leave them there for long."""


Optim = Annotated[AdamW | Adam | Adafactor, Field(discriminator="kind")]

"""How a sparse support is found and trained: the numbers of `mttl.sparse.lottery_ticket`."""

import math
from dataclasses import dataclass
from typing import Literal

from mttl.config.method_choices import check_density
from mttl.errors import require_one_of

Criterion = Literal["change", "magnitude", "movement", "fisher", "random"]
CRITERIA: tuple[Criterion, ...] = ("change", "magnitude", "movement", "fisher", "random")
FORMS = ("added", "masked")
SCHEDULES = ("once", "cubic")


@dataclass(frozen=True)
class LotterySettings:
    """How a support is found and trained.

    Args:
        density: Fraction of the maskable entries that are trained.
        criterion: By which they are chosen; see `mttl.sparse.scores`.
        scope: Whether tensors compete; see `mttl.skills.weights.supports`.
        structure: What is chosen as a whole; see `mttl.skills.weights.support_units`.
        block: Side of a block.
        form: What happens to the entries outside: they stay (``"added"``, θ0 + φ), or become 0
            (``"masked"``, θ0 ∘ b + φ).
        rounds: In how many turns of the first phase the support narrows, by equal factors.
        schedule: Choose after a turn (``"once"``), or before every step of the first phase, by the
            scores so far, an ever smaller fraction (``"cubic"``: gradual pruning). Then entries
            keep the values that they have learned.
        dense_steps: Steps before gradual pruning begins.
        rewind: After each turn, entries go back to what they were after so many steps of the first.
        full_steps: Steps of a turn of the first phase; none are taken for random supports.
        sparse_steps: Steps of the second phase.
        batch_size: Rows per step.
        lr: Peak learning rate of AdamW, without weight decay.
        sparse_lr: That of the second phase; ``lr`` by default.
        warmup: Fraction of a phase in which the rate rises; it then falls linearly to 0.
        l1: The factor λ.
        gradient_clip_val: Largest norm of the gradients of a phase's parameters; none by default.
        seed: Of the order of rows and of what objectives draw.

    Raises:
        ValueError: If a number is out of range or the criterion is unknown.
    """

    density: float = 0.01
    criterion: Criterion = "change"
    scope: str = "global"
    structure: str = "entries"
    block: int = 16
    form: str = "added"
    rounds: int = 1
    schedule: str = "once"
    dense_steps: int = 0
    rewind: int = 0
    full_steps: int = 1000
    sparse_steps: int = 1000
    batch_size: int = 8
    lr: float = 5e-5
    sparse_lr: float | None = None
    warmup: float = 0.0
    l1: float = 0.0
    gradient_clip_val: float | None = None
    seed: int = 13

    def __post_init__(self) -> None:
        check_density(self.density)
        require_one_of(CRITERIA, criterion=self.criterion)
        require_one_of(FORMS, form=self.form)
        for name in ("rounds", "full_steps", "sparse_steps", "batch_size", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        for name in ("lr", "sparse_lr", "gradient_clip_val"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} ({value}) must be a number above 0")
        if not 0 <= self.l1 < math.inf:
            raise ValueError(f"l1 ({self.l1}) must be a number of at least 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup ({self.warmup}) must be at least 0 and below 1")
        if not 0 <= self.rewind < self.full_steps:
            raise ValueError(
                f"rewind ({self.rewind}) must lie between 0 and below full_steps "
                f"({self.full_steps})"
            )
        if self.rewind and (self.l1 or self.criterion in ("fisher", "random")):
            raise ValueError(
                f"rewind ({self.rewind}) must be 0 with the criteria fisher and random, which "
                "train nothing first, and with l1, which pulls to the start"
            )
        require_one_of(SCHEDULES, schedule=self.schedule)
        gradual = self.schedule == "cubic"
        if gradual and (
            self.form != "masked"
            or self.rounds > 1
            or self.rewind
            or self.criterion in ("fisher", "random")
        ):
            raise ValueError(
                "schedule ('cubic') sets entries to 0 while scores grow: it needs the form masked, "
                "1 round, rewind 0, and the criterion movement, magnitude or change"
            )
        if not 0 <= self.dense_steps < self.full_steps or (self.dense_steps and not gradual):
            raise ValueError(
                f"dense_steps ({self.dense_steps}) must lie between 0 and below full_steps "
                f"({self.full_steps}), and is for the schedule cubic"
            )
        if self.rounds > 1 and self.criterion == "random":
            raise ValueError(f"rounds ({self.rounds}) must be 1 with the criterion random")

    def density_at(self, step: int) -> float:
        """Return the fraction of entries that take part in a step of gradual pruning.

        Args:
            step: Of the first phase.
        """
        over = max(0, step - self.dense_steps) / (self.full_steps - self.dense_steps)
        return self.density + (1 - self.density) * (1 - over) ** 3

    @property
    def steps(self) -> dict[str, int]:
        """Steps of each phase; the first is taken once a round."""
        full = 0 if self.criterion == "random" else self.full_steps
        return {"full": full, "sparse": self.sparse_steps}

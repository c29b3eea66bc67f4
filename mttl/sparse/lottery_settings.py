"""How a sparse support is found and trained: the numbers of `mttl.sparse.lottery_ticket`."""

from dataclasses import dataclass
from typing import Literal

from mttl.config.enums import check_density
from mttl.io.errors import require_at_least, require_one_of, require_positive

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
        structure: What is chosen as a whole; see `mttl.skills.weights.supports`.
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
        require_one_of(SCHEDULES, schedule=self.schedule)
        whole = ("rounds", "full_steps", "sparse_steps", "batch_size", "block")
        require_at_least(1, **{name: getattr(self, name) for name in whole})
        rates = {name: getattr(self, name) for name in ("lr", "sparse_lr", "gradient_clip_val")}
        require_positive(**{name: rate for name, rate in rates.items() if rate is not None})
        require_at_least(0, **{name: getattr(self, name) for name in ("l1", "rewind")})
        masking = self.criterion in ("fisher", "random")  # nothing is trained first
        gradual, below = self.schedule == "cubic", f"below full_steps ({self.full_steps})"
        plain = self.form == "masked" and self.rounds == 1 and not (self.rewind or masking)
        rules = [
            ("warmup", 0 <= self.warmup < 1, "at least 0 and below 1"),
            ("rewind", self.rewind < self.full_steps, below),
            (
                "rewind",
                not (self.rewind and (self.l1 or masking)),
                "0 with the criteria fisher and random, which train nothing first, and with l1, "
                "which pulls to the start",
            ),
            (
                "schedule",
                not gradual or plain,
                "once, or have the form masked, 1 round, rewind 0, and the criterion movement, "
                "magnitude or change, since entries are 0 while scores grow",
            ),
            (
                "dense_steps",
                0 <= self.dense_steps < self.full_steps and (gradual or not self.dense_steps),
                f"at least 0 and {below}, for the schedule cubic",
            ),
            ("rounds", self.rounds == 1 or self.criterion != "random", "1 with random supports"),
        ]
        for name, holds, allowed in rules:
            if not holds:
                raise ValueError(f"{name} ({getattr(self, name)}) must be {allowed}")

    def density_at(self, step: int) -> float:
        """Return the fraction of entries that take part in a step of gradual pruning."""
        over = max(0, step - self.dense_steps) / (self.full_steps - self.dense_steps)
        return self.density + (1 - self.density) * (1 - over) ** 3

    @property
    def steps(self) -> dict[str, int]:
        """Steps of each phase; the first is taken once a round."""
        full = 0 if self.criterion == "random" else self.full_steps
        return {"full": full, "sparse": self.sparse_steps}

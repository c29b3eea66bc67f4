"""The settings of `mttl.sparse.lottery_ticket`."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from mttl.config.enums import SCOPES, STRUCTURES
from mttl.plugins.part_settings import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    OneOf,
    Positive,
    PositiveInt,
    refusing,
)

CRITERIA = ("change", "magnitude", "movement", "fisher", "random")


@refusing
@dataclass(frozen=True, kw_only=True)
class LotterySettings:
    """Settings of the search and training of a support; also the help texts of ``mttl sparse``.

    Args:
        density: Fraction of the maskable entries that are trained.
        criterion: Criterion of the choice of entries.
        scope: Set of entries that are compared: those of all tensors, or of each.
        structure: Unit of the choice.
        block: Side of a block.
        form: Entries outside the support: unchanged (θ0 + φ), or 0 (θ0 ∘ b + φ).
        rounds: Rounds of the first phase, each of which narrows the support by the same factor.
        schedule: Time of the choice: once after a round, or before every step, with a falling
            density (gradual pruning); entries then keep their trained values.
        dense_steps: Steps before gradual pruning starts.
        rewind: Step of the first round to whose values entries return after each round.
        full_steps: Steps of a round of the first phase; random supports need none.
        sparse_steps: Steps of the second phase.
        batch_size: Rows per step.
        lr: Peak learning rate of AdamW, without weight decay.
        sparse_lr: Peak learning rate of the second phase; by default the same.
        warmup: Fraction of a phase in which the rate rises; it then falls linearly to 0.
        l1: Factor of the L1 penalty on changes; 0.1 for languages.
        gradient_clip_val: Largest norm of the gradients of a phase's parameters.
        seed: Seed of the order of rows and of random objectives.

    Raises:
        ValueError: If a number is out of range, or settings are incompatible.
    """

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    criterion: Annotated[str, OneOf(*CRITERIA)] = "change"
    scope: Annotated[str, OneOf(*SCOPES)] = "global"
    structure: Annotated[str, OneOf(*STRUCTURES)] = "entries"
    block: PositiveInt = 16
    form: Annotated[str, OneOf("added", "masked")] = "added"
    rounds: PositiveInt = 1
    schedule: Annotated[str, OneOf("once", "cubic")] = "once"
    dense_steps: NonNegativeInt = 0
    rewind: NonNegativeInt = 0
    full_steps: PositiveInt = 1000
    sparse_steps: PositiveInt = 1000
    batch_size: PositiveInt = 8
    lr: Positive = 5e-5
    sparse_lr: Positive | None = None
    warmup: Fraction = 0.0
    l1: NonNegative = 0.0
    gradient_clip_val: Positive | None = None
    seed: int = 13

    def __post_init__(self) -> None:
        masking = self.criterion in ("fisher", "random")  # the first phase trains nothing
        gradual, below = self.schedule == "cubic", f"below full_steps ({self.full_steps})"
        plain = self.form == "masked" and self.rounds == 1 and not (self.rewind or masking)
        rules = [
            ("rewind", self.rewind < self.full_steps, below),
            (
                "rewind",
                not (self.rewind and (self.l1 or masking)),
                "0 with the criteria fisher and random, which train nothing in the first phase, "
                "and with l1, which penalises the distance from the start",
            ),
            (
                "schedule",
                not gradual or plain,
                "once, unless form is masked, rounds 1, rewind 0, and the criterion movement, "
                "magnitude or change",
            ),
            (
                "dense_steps",
                self.dense_steps < self.full_steps and (gradual or not self.dense_steps),
                f"{below}, for the schedule cubic",
            ),
            ("rounds", self.rounds == 1 or self.criterion != "random", "1 with random supports"),
        ]
        for name, holds, allowed in rules:
            if not holds:
                raise ValueError(f"{name} ({getattr(self, name)}) must be {allowed}")

    def density_at(self, step: int) -> float:
        """Return the density in a step of gradual pruning."""
        over = max(0, step - self.dense_steps) / (self.full_steps - self.dense_steps)
        return self.density + (1 - self.density) * (1 - over) ** 3

    @property
    def steps(self) -> dict[str, int]:
        """The steps of each phase; those of the first are per round."""
        full = 0 if self.criterion == "random" else self.full_steps
        return {"full": full, "sparse": self.sparse_steps}

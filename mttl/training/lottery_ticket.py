r"""Lottery-ticket sparse fine-tuning, and its relatives: choose a support, rewind, train it alone.

::

    full      θ0 ──── all maskable tensors, n steps ───> θ1      scores: |θ1 - θ0|, movement, Fisher
    rewind    θ1 ──── the K best entries are kept in mind ──> θ0
    sparse    θ0 ──── these entries alone, m steps ────> θ2      the skill: φ = θ2 - θ0

Optimizer and learning rate begin anew in the second phase. Both add the pull to the start,
:math:`\lambda \lVert\theta - \theta_0\rVert_1 / N`, to the loss, N the maskable parameters. By
random draw there is no first phase; for Fisher information its steps only read gradients, one per
example.

References:
    Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual Transfer*,
    ACL 2022, arXiv:2110.07560.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mttl.aggregation.sparse_skill import SparseSkill
from mttl.skills.sparse_tuning import SparseTuning
from mttl.skills.support_scores import FisherScores, MovementScores, magnitude_of_change
from mttl.skills.supports import check_density, random_support, select_support
from mttl.training.optim import learning_rate_factor

Criterion = Literal["change", "movement", "fisher", "random"]
CRITERIA: tuple[Criterion, ...] = ("change", "movement", "fisher", "random")


class Objective(Protocol):
    """What is learned: rows, and the loss of some of them."""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        ...

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Tensor:
        """Return the mean loss of some rows; the seed decides on all that is drawn."""
        ...


@dataclass(frozen=True)
class LotterySettings:
    """How a support is found and trained.

    Args:
        density: Fraction of the maskable entries that are trained.
        criterion: By which they are chosen; see `mttl.skills.support_scores`.
        scope: Whether tensors compete; see `mttl.skills.supports`.
        structure: What is chosen as a whole; see there.
        block: Side of a block.
        full_steps: Steps of the first phase; none are taken for random supports.
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
        if self.criterion not in CRITERIA:
            raise ValueError(f"criterion ('{self.criterion}') must be one of {', '.join(CRITERIA)}")
        for name in ("full_steps", "sparse_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.l1 < 0:
            raise ValueError(f"l1 ({self.l1}) must not be negative")

    @property
    def steps(self) -> dict[str, int]:
        """Steps of each phase."""
        full = 0 if self.criterion == "random" else self.full_steps
        return {"full": full, "sparse": self.sparse_steps}


class LotteryTicket:
    """The two phases, step by step; can be stopped after each of them.

    Args:
        model: The network, as the skill shall find it. Its parameters change in place.
        maskable: Names of the parameters that may be in the support; others are frozen.
        objective: What is learned.
        settings: How.

    Attributes:
        phase: ``"full"``, ``"sparse"`` or ``"done"``.
        step: Steps of the phase that were taken.
        last_loss: Of the last step, a tensor without gradient; None before the first.

    Raises:
        ValueError: If ``maskable`` is empty.
    """

    def __init__(
        self,
        model: nn.Module,
        maskable: Sequence[str],
        objective: Objective,
        settings: LotterySettings,
    ) -> None:
        if not maskable:
            raise ValueError("maskable must name at least one parameter")
        self.model = model
        self.objective = objective
        self.settings = settings
        self.step = 0
        self.last_loss: Tensor | None = None
        model.requires_grad_(False)
        named = dict(model.named_parameters())
        self.parameters = {name: named[name] for name in maskable}
        self.n_maskable = sum(value.numel() for value in self.parameters.values())
        self.starts = {name: value.detach().clone() for name, value in self.parameters.items()}
        self._tuning: SparseTuning | None = None
        self._scores: MovementScores | FisherScores | None = None
        self._epoch: tuple[int, Tensor] | None = None
        if settings.steps["full"]:
            self._begin_full()
        else:
            shapes = {name: value.shape for name, value in self.parameters.items()}
            self._begin_sparse(
                random_support(
                    shapes,
                    settings.density,
                    structure=settings.structure,
                    block=settings.block,
                    generator=torch.Generator().manual_seed(settings.seed),
                )
            )

    @property
    def n_steps(self) -> int:
        """Steps of both phases."""
        return sum(self.settings.steps.values())

    @property
    def n_done(self) -> int:
        """Steps that were taken, in both phases."""
        before = 0 if self.phase == "full" else self.settings.steps["full"]
        return before + self.step

    @property
    def doing(self) -> str:
        """The phase in words."""
        if self.phase != "full":
            return "sparse tuning"
        reading = self.settings.criterion == "fisher"
        return "reading Fisher information" if reading else "full tuning"

    def advance(self) -> None:
        """Take one step, and go on to the next phase after the last one of a phase."""
        self.model.train()
        fisher = self.phase == "full" and isinstance(self._scores, FisherScores)
        (self._read_gradients if fisher else self._train)()
        self.step += 1
        if self.step == self.settings.steps[self.phase]:
            if self.phase == "full":
                self._rewind()
            else:
                self.phase = "done"

    def skill(
        self,
        about: Mapping[str, Any] | None = None,
        *,
        originals: Callable[[str, Tensor, Tensor], Tensor] | None = None,
    ) -> SparseSkill:
        """Return the skill as trained so far.

        Args:
            about: How it was made; JSON.
            originals: See `SparseTuning.skill`.

        Raises:
            RuntimeError: In the first phase.
        """
        if self._tuning is None:
            raise RuntimeError("there is no skill before the second phase")
        return self._tuning.skill(about, originals=originals)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue after this step."""
        state: dict[str, Any] = {
            "phase": self.phase,
            "step": self.step,
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state["device_random"] = torch.cuda.get_rng_state()
        if self._tuning is not None:
            state["support"] = self._tuning.support
            state["values"] = {name: x.detach() for name, x in self._tuning.entries.items()}
        else:
            state["values"] = {name: x.detach() for name, x in self.parameters.items()}
            if self._scores is not None:
                state["scores"] = self._scores.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; the model must be at its start.

        Args:
            state: As from `state_dict`.
        """
        if state["phase"] != "full" and self._tuning is None:
            self._begin_sparse(state["support"])
        values = self.parameters if self._tuning is None else self._tuning.entries
        with torch.no_grad():
            for name, value in values.items():
                value.copy_(state["values"][name])
        if self._tuning is not None:
            self._tuning.write()
        elif self._scores is not None:
            self._scores.load_state_dict(state["scores"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.phase, self.step = state["phase"], state["step"]
        torch.set_rng_state(state["random"])
        if "device_random" in state:
            torch.cuda.set_rng_state(state["device_random"])

    def _begin_full(self) -> None:
        self.phase = "full"
        for value in self.parameters.values():
            value.requires_grad_(True)
        if self.settings.criterion == "movement":
            self._scores = MovementScores(self.parameters)
        elif self.settings.criterion == "fisher":
            self._scores = FisherScores(self.parameters)
        self._begin_optimizer(list(self.parameters.values()), self.settings.lr)

    def _rewind(self) -> None:
        """Choose the support, and go back to the start."""
        scores = (
            magnitude_of_change(self.starts, self.parameters)
            if self._scores is None
            else self._scores.scores
        )
        support = select_support(
            scores,
            self.settings.density,
            scope=self.settings.scope,
            structure=self.settings.structure,
            block=self.settings.block,
        )
        self._scores = None
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(self.starts[name])
        self._begin_sparse(support)

    def _begin_sparse(self, support: Mapping[str, Tensor]) -> None:
        self.phase, self.step = "sparse", 0
        self._tuning = SparseTuning(self.model, support)
        self.starts = {}  # the tuning keeps what it needs
        rate = self.settings.sparse_lr
        self._begin_optimizer(self._tuning.parameters(), self.settings.lr if rate is None else rate)

    def _begin_optimizer(self, trained: list[nn.Parameter], lr: float) -> None:
        n_steps = self.settings.steps[self.phase]
        self._trained = trained
        self._optimizer = AdamW(trained, lr=lr, weight_decay=0.0)
        factor = learning_rate_factor("linear", int(self.settings.warmup * n_steps), n_steps)
        self._schedule = LambdaLR(self._optimizer, factor)

    def _train(self) -> None:
        loss = self.objective.loss(self.model, self._rows(), self._seed())
        loss.backward()
        pull = self.settings.l1 / self.n_maskable
        if self._tuning is None:
            self._add_l1(pull)
        elif pull:
            self._tuning.add_l1(pull)
        if self.settings.gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(self._trained, self.settings.gradient_clip_val)
        if isinstance(self._scores, MovementScores):
            self._scores.add(self._optimizer.param_groups[0]["lr"])
        self._optimizer.step()
        self._schedule.step()
        if self._tuning is not None:
            self._tuning.write()
        self._optimizer.zero_grad()
        self.last_loss = loss.detach()

    @torch.no_grad()
    def _add_l1(self, pull: float) -> None:
        if pull:
            for name, value in self.parameters.items():
                if value.grad is not None:
                    value.grad.add_((value - self.starts[name]).sign(), alpha=pull)

    def _read_gradients(self) -> None:
        assert isinstance(self._scores, FisherScores)
        self.model.eval()  # information of the network that is used, without dropout
        losses = []
        for row in self._rows():
            loss = self.objective.loss(self.model, [row], self._seed())
            loss.backward()
            self._scores.add()
            for value in self.parameters.values():
                value.grad = None
            losses.append(loss.detach())
        self.last_loss = torch.stack(losses).mean()

    def _rows(self) -> list[int]:
        """Return the rows of this step: epoch after epoch, each in an order of its own."""
        n_rows, size = self.objective.n_rows, self.settings.batch_size
        rows = []
        for place in range(self.step * size, (self.step + 1) * size):
            epoch = place // n_rows
            if self._epoch is None or self._epoch[0] != epoch:
                generator = torch.Generator().manual_seed(1000 * self.settings.seed + epoch)
                self._epoch = epoch, torch.randperm(n_rows, generator=generator)
            rows.append(int(self._epoch[1][place % n_rows]))
        return rows

    def _seed(self) -> int:
        return (self.settings.seed * 1_000_003 + self.n_done) % 2**63

r"""Lottery-ticket sparse fine-tuning and related methods: choose a support, rewind, train it.

::

    full      θ0 ──── all maskable tensors, n steps ───> θ1      scores: |θ1 - θ0|, movement, Fisher
    rewind    θ1 ──── choose the K best entries ───────────> θ0
    sparse    θ0 ──── only these entries, m steps ─────> θ2      the skill: φ = θ2 - θ0

Pruning differs in its settings: the criterion ``magnitude`` |θ1|, and the form ``masked``, which
sets entries outside the support to 0. With ``rounds`` above 1 the first phase is repeated on the
narrowed support until the density is reached (iterative pruning). Entries return to θ0, as in the
first lottery tickets, or with ``rewind`` to their values after the first steps.

Movement pruning (``schedule``) chooses before every step of the first phase the fraction
:math:`d_t = d + (1 - d)(1 - t / n)^3` of entries with the best
:math:`S = -\sum_t \eta_t g_t \theta_t`, with gradients g at :math:`\theta \circ b_t`. Entries
outside the mask are 0 in the pass, keep value and score, and may return. The second phase is the
paper's last steps at the final density, in which its masks may still change.

Optimizer and learning rate restart in the second phase. Both phases add the penalty
:math:`\lambda \lVert\theta - \theta_0\rVert_1 / N` to the loss, with N maskable parameters. Random
supports skip the first phase; for Fisher information it only computes gradients of examples.

The head of a task is trained densely in both phases. As the maskable entries, it returns to its
start before each phase and round, as in the authors' code.

References:
    Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual Transfer*,
    ACL 2022, arXiv:2110.07560. Frankle and Carbin, *The Lottery Ticket Hypothesis: Finding Sparse,
    Trainable Neural Networks*, ICLR 2019, arXiv:1803.03635; with rewinding: Frankle, Dziugaite, Roy
    and Carbin, *Stabilizing the Lottery Ticket Hypothesis*, 2019, arXiv:1903.01611. Sanh, Wolf and
    Rush, *Movement Pruning: Adaptive Sparsity by Fine-Tuning*, NeurIPS 2020, arXiv:2005.07683.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mttl.io.reading import exact_fraction
from mttl.skills.weights.supports import random_support
from mttl.sparse.lottery_settings import LotterySettings
from mttl.sparse.skill_file import Originals, SparseSkill
from mttl.sparse.tuning import FullTuning, SparseTuning
from mttl.training.optim import learning_rate_factor


class Objective(Protocol):
    """The interface of training objectives: a number of rows, and the loss of some of them."""

    n_rows: int

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Tensor:
        """Return the mean loss of some rows; randomness depends only on the seed."""
        ...


class LotteryTicket:
    """The two phases of sparse fine-tuning, step by step.

    The network is that to which the skill will be applied. It changes in place, and parameters that
    are not ``maskable`` are frozen. The objective uses the ``head``, if there is one.
    """

    phase: str  # "full", "sparse" or "done"

    def __init__(
        self,
        model: nn.Module,
        maskable: Sequence[str],
        objective: Objective,
        settings: LotterySettings,
        head: nn.Module | None = None,
    ) -> None:
        self.model = model
        self.head = nn.Module() if head is None else head
        self._head_start = deepcopy(self.head.state_dict())
        self.objective = objective
        self.settings = settings
        self.step = 0  # within the phase, or within the current round of the first phase
        self.round = 0  # finished rounds of the first phase
        self.last_loss: Tensor | None = None  # without gradient
        model.requires_grad_(False)
        named = dict(model.named_parameters())
        parameters = {name: named[name] for name in maskable}
        self.n_maskable = sum(value.numel() for value in parameters.values())
        self._parameters = parameters
        # Needed if the skill is not the difference to the start of the second phase.
        differs = settings.form == "masked" or settings.rewind
        self._starts = {name: x.detach().clone() for name, x in parameters.items() if differs}
        self._tuning: FullTuning | SparseTuning
        if settings.steps["full"]:
            self.phase = "full"
            self._tuning = FullTuning(parameters, settings)
            self._begin_optimizer(settings.lr)
        else:
            support = random_support(
                {name: value.shape for name, value in parameters.items()},
                settings.density,
                structure=settings.structure,
                block=settings.block,
                generator=torch.Generator().manual_seed(settings.seed),
            )
            self._begin_sparse(support)

    @property
    def n_steps(self) -> int:
        """The number of steps of all rounds and both phases."""
        steps = self.settings.steps
        return self.settings.rounds * steps["full"] + steps["sparse"]

    @property
    def n_done(self) -> int:
        """The number of finished steps of both phases."""
        over = self.round if self.phase == "full" else self.settings.rounds
        return over * self.settings.steps["full"] + self.step

    @property
    def doing(self) -> str:
        """The description of the phase, for the progress bar."""
        if self.phase != "full":
            return "sparse tuning"
        reading = self.settings.criterion == "fisher"
        doing = "reading Fisher information" if reading else "full tuning"
        n_rounds = self.settings.rounds
        return doing if n_rounds == 1 else f"{doing}, round {self.round + 1} of {n_rounds}"

    def advance(self) -> None:
        """Run one step; after the last step of a phase, start the next phase."""
        self.model.train()
        self.head.train()
        tuning = self._tuning
        if isinstance(tuning, FullTuning) and self.settings.criterion == "fisher":
            self._read_gradients(tuning)
        else:
            self._train(tuning)
        self.step += 1
        if isinstance(tuning, FullTuning) and (self.round, self.step) == (0, self.settings.rewind):
            tuning.mark()
            self._head_start = deepcopy(self.head.state_dict())
        if self.step == self.settings.steps[self.phase]:
            if not isinstance(tuning, FullTuning):
                self.phase = "done"
                return
            self.round += 1
            if self.settings.schedule == "cubic":  # trained values are kept
                self._head_start = deepcopy(self.head.state_dict())
            support = tuning.rewind(self.round)
            if self.round == self.settings.rounds:
                self._begin_sparse(support)
            else:
                self.step = 0
                self._begin_optimizer(self.settings.lr)

    def skill(
        self, about: Mapping[str, Any] | None = None, *, originals: Originals | None = None
    ) -> SparseSkill:
        """Return the current skill, in the second phase; see `SparseSkill.between`."""
        if not isinstance(self._tuning, SparseTuning):
            raise RuntimeError("there is no skill yet, because the second phase has not begun")
        if not self._starts:
            skill = self._tuning.skill(about, originals=originals)
        else:
            support, starts = self._tuning.support, self._starts
            if self.settings.form == "masked":
                support = {n: torch.arange(x.numel(), device=x.device) for n, x in starts.items()}
            about = {**(about or {}), "form": self.settings.form}
            skill = SparseSkill.between(starts, self._parameters, support, about, originals)
        return replace(skill, head=deepcopy(self.head.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state after this step, for `load_state_dict`."""
        state: dict[str, Any] = {
            "phase": self.phase,
            "step": self.step,
            "round": self.round,
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random": torch.get_rng_state(),
            "head": [deepcopy(self.head.state_dict()), self._head_start],
        }
        if torch.cuda.is_available():
            state["device_random"] = torch.cuda.get_rng_state()
        if isinstance(self._tuning, FullTuning):
            return state | self._tuning.state_dict()
        state["support"] = self._tuning.support
        state["values"] = {name: value.detach() for name, value in self._tuning.entries.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the model must have its initial weights."""
        if state["phase"] == "full":
            assert isinstance(self._tuning, FullTuning)
            self._tuning.load_state_dict(state)
        else:
            if isinstance(self._tuning, FullTuning):
                self._begin_sparse(state["support"])
            assert isinstance(self._tuning, SparseTuning)
            with torch.no_grad():
                for name, value in self._tuning.entries.items():
                    value.copy_(state["values"][name])
            self._tuning.write()
        values, self._head_start = state["head"]
        self.head.load_state_dict(values)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.phase, self.step, self.round = state["phase"], state["step"], state["round"]
        torch.set_rng_state(state["random"])
        if "device_random" in state:
            torch.cuda.set_rng_state(state["device_random"])

    @torch.no_grad()
    def _begin_sparse(self, support: Mapping[str, Tensor]) -> None:
        self.phase, self.step = "sparse", 0
        for name, value in self._parameters.items() if self.settings.form == "masked" else ():
            places = support.get(name, torch.empty(0, dtype=torch.int64)).to(value.device)
            kept = value.reshape(-1)[places]
            value.zero_().put_(places, kept)
        self._tuning = SparseTuning(self.model, support)
        rate = self.settings.sparse_lr
        self._begin_optimizer(self.settings.lr if rate is None else rate)

    def _begin_optimizer(self, lr: float) -> None:
        n_steps = self.settings.steps[self.phase]
        self.head.load_state_dict(self._head_start)
        self._trained = [*self._tuning.entries.values(), *self.head.parameters()]
        self._optimizer = AdamW(self._trained, lr=lr, weight_decay=0.0)
        warmup = int(exact_fraction(self.settings.warmup, n_steps))
        factor = learning_rate_factor("linear", warmup, n_steps)
        self._schedule = LambdaLR(self._optimizer, factor)

    def _train(self, tuning: FullTuning | SparseTuning) -> None:
        rate = self._optimizer.param_groups[0]["lr"]
        full = tuning if isinstance(tuning, FullTuning) else None
        gradual = self.settings.schedule == "cubic"
        if full and gradual:
            full.apply_mask(self.step)
        loss = self.objective.loss(self.model, self._rows(), self._seed())
        loss.backward()
        if full and gradual:
            full.unmask(rate)
        if self.settings.l1:
            tuning.add_l1(self.settings.l1 / self.n_maskable)
        if full:
            full.mask_gradients()
        if self.settings.gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(self._trained, self.settings.gradient_clip_val)
        if full and not gradual:
            full.before_step(rate)
        self._optimizer.step()
        self._schedule.step()
        if isinstance(tuning, SparseTuning):
            tuning.write()
        self._optimizer.zero_grad()
        self.last_loss = loss.detach()

    def _read_gradients(self, tuning: FullTuning) -> None:
        self.model.eval()  # without dropout
        self.head.eval()
        losses = []
        for row in self._rows():
            loss = self.objective.loss(self.model, [row], self._seed())
            loss.backward()
            tuning.add_example()
            losses.append(loss.detach())
        self._optimizer.zero_grad()  # of the head
        self.last_loss = torch.stack(losses).mean()

    def _rows(self) -> list[int]:
        """Return the rows of a step, in a random order per epoch."""
        n, size = self.objective.n_rows, self.settings.batch_size
        places = (divmod(place, n) for place in range(self.step * size, (self.step + 1) * size))
        return [_order(n, 1000 * self.settings.seed + epoch)[place] for epoch, place in places]

    def _seed(self) -> int:
        return (self.settings.seed * 1_000_003 + self.n_done) % 2**63


@lru_cache(maxsize=2)
def _order(n_rows: int, seed: int) -> list[int]:
    return torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed)).tolist()

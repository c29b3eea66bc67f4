r"""Sparse skills are added to a network and removed again, bit for bit.

:math:`\theta = \theta_0 + \sum_j w_j \phi_j`. To subtract what was added would leave rounding
errors behind; so the weights that skills touch are remembered as they were (as many as there are
entries in the skills, not in the network), every composition is computed from these, and where no
skill is left they are put back. The sum is in double precision and in the order of the skills'
names, so that the order of application does not matter.
"""

import math

import torch
from torch import Tensor, nn

from mttl.io.errors import CheckpointError, ConfigError, nearest, some
from mttl.sparse.skill_file import SparseSkill, digest, put_entries

MOST_SHOWN = 10


class SparseComposition:
    """A network, given without skills and changed in place, with the sparse skills that are on it.

    While skills are on it, nothing else may change the weights at their supports.

    References:
        Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual
        Transfer*, ACL 2022, arXiv:2110.07560, section 3.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {name: value.detach() for name, value in model.named_parameters()}
        self._skills: dict[str, tuple[float, SparseSkill]] = {}
        self._remembered: dict[str, tuple[Tensor, Tensor]] = {}  # before any skill

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the skills that are on the network, sorted."""
        return tuple(sorted(self._skills))

    def apply(self, name: str, skill: SparseSkill, *, weight: float = 1.0) -> None:
        """Put a skill on the network.

        Raises:
            ConfigError: If a skill of that name is on the network, or the weight is not finite.
            CheckpointError: If the skill was made for another network; the message lists what
                differs, and nothing is changed.
        """
        self._check(name, skill, weight)
        self._skills[name] = (weight, skill)
        for tensor in skill.changes:
            self._write(tensor)

    def remove(self, name: str) -> None:
        """Take a skill off; where no other is left, the weights are as before, bit for bit."""
        self._require(name)
        for tensor in self._skills.pop(name)[1].changes:
            self._write(tensor)

    def swap(self, old: str, name: str, skill: SparseSkill, *, weight: float = 1.0) -> None:
        """Put a skill in the place of another, which stays where `apply` raises an error."""
        self._require(old)
        self._check(name, skill, weight, instead=old)
        self.remove(old)
        self.apply(name, skill, weight=weight)

    def clear(self) -> None:
        """Take all skills off."""
        for name in self.names:
            self.remove(name)

    def originals(self, name: str, indices: Tensor, values: Tensor) -> Tensor:
        """Return weights of a tensor as they are without skills."""
        if name not in self._remembered or not len(known := self._remembered[name][0]):
            return values
        place = torch.searchsorted(known, indices).clamp(max=len(known) - 1)
        return torch.where(known[place] == indices, self._remembered[name][1][place], values)

    def _without_skills(self, name: str, indices: Tensor) -> Tensor:
        tensor = self._tensors[name]
        indices = indices.to(tensor.device)
        return self.originals(name, indices, tensor.reshape(-1)[indices])

    def _require(self, name: str) -> None:
        if name not in self._skills:
            raise ValueError(f"no skill '{name}' is on the network.{nearest(name, self._skills)}")

    def _check(
        self, name: str, skill: SparseSkill, weight: float, instead: str | None = None
    ) -> None:
        if name in self._skills and name != instead:
            raise ConfigError(f"a skill '{name}' is on the network already; name each once")
        if not math.isfinite(weight):
            raise ConfigError(f"the weight of skill '{name}' ({weight}) must be a finite number")
        others = [key for key, (_, own) in self._skills.items() if own.masks and key != instead]
        if skill.masks and others:
            raise CheckpointError(
                f"the skill '{name}' sets weights to 0, and so does '{others[0]}': two such skills "
                "cannot be added. Take the other off first, or learn one of them with --form added"
            )
        problems = []
        for tensor, change in skill.changes.items():
            own = self._tensors.get(tensor)
            if own is None:
                problems.append(f"{tensor}: missing{nearest(tensor, self._tensors, 1)}")
            elif tuple(own.shape) != change.shape:
                problems.append(f"{tensor}: shape {tuple(own.shape)} instead of {change.shape}")
            elif own.dtype != change.values.dtype:
                problems.append(f"{tensor}: {own.dtype} instead of {change.values.dtype}")
            elif digest(self._without_skills(tensor, change.indices)) != change.base:
                problems.append(f"{tensor}: other weights")
        if problems:
            raise CheckpointError(
                f"the skill '{name}' was made for another network; this one differs in "
                f"{len(problems)} of {len(skill.changes)} tensors:\n" + some(problems, MOST_SHOWN)
            )

    @torch.no_grad()
    def _write(self, name: str) -> None:
        """Put back what was there, remember what the present skills touch, and add them up."""
        tensor = self._tensors[name]
        parts = [
            (weight, skill.changes[name])
            for _, (weight, skill) in sorted(self._skills.items())
            if name in skill.changes
        ]
        places = [change.indices.to(tensor.device) for _, change in parts]
        union = torch.cat(places).unique() if places else torch.empty(0, dtype=torch.int64)
        originals = self._without_skills(name, union)
        if name in self._remembered:
            put_entries(tensor, *self._remembered.pop(name))
        if not parts:
            return
        self._remembered[name] = union, originals
        total = originals.to(torch.float64, copy=True)
        for (weight, change), place in zip(parts, places, strict=True):
            changes = weight * change.values.to(tensor.device).double()
            total[torch.searchsorted(union, place)] += changes
        put_entries(tensor, union, total.to(tensor.dtype))

r"""Addition and bit-exact removal of sparse skills.

:math:`\theta = \theta_0 + \sum_j w_j \phi_j`. The original weights at the skills' entries are
stored, every composition is computed from them, and removal restores them without rounding errors.
The sum is in double precision and in the order of the skills' names, so that the order of
application does not matter.
"""

import torch
from torch import Tensor, nn

from mttl.io.errors import CheckpointError, ConfigError, nearest, some
from mttl.sparse.skill_file import SparseSkill, digest

MOST_SHOWN = 10


class SparseComposition:
    """The sparse skills of a network, which is given without skills and changed in place.

    Other code must not change the weights at the supports of applied skills.

    References:
        Ansell, Ponti, Korhonen and Vulić, *Composable Sparse Fine-Tuning for Cross-Lingual
        Transfer*, ACL 2022, arXiv:2110.07560, section 3.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {name: value.detach() for name, value in model.named_parameters()}
        self._skills: dict[str, tuple[float, SparseSkill]] = {}
        self._remembered: dict[str, tuple[Tensor, Tensor]] = {}  # original weights

    @property
    def names(self) -> tuple[str, ...]:
        """The sorted names of the applied skills."""
        return tuple(sorted(self._skills))

    def apply(self, name: str, skill: SparseSkill, *, weight: float = 1.0) -> None:
        """Add a skill to the network.

        Raises:
            ConfigError: If a skill of that name is applied already.
            CheckpointError: If the skill was made for another network; the message lists the
                differences, and the network does not change.
        """
        self._check(name, skill)
        self._skills[name] = (weight, skill)
        for tensor in skill.changes:
            self._write(tensor)

    def remove(self, name: str) -> None:
        """Remove a skill; without skills, the weights are bit-identical to the originals."""
        self._require(name)
        for tensor in self._skills.pop(name)[1].changes:
            self._write(tensor)

    def swap(self, old: str, name: str, skill: SparseSkill, *, weight: float = 1.0) -> None:
        """Replace a skill by another; after an error of `apply` the old one stays."""
        self._require(old)
        self._check(name, skill, instead=old)
        self.remove(old)
        self.apply(name, skill, weight=weight)

    def clear(self) -> None:
        """Remove all skills."""
        for name in self.names:
            self.remove(name)

    def originals(self, name: str, indices: Tensor, values: Tensor) -> Tensor:
        """Return original weights of a tensor at some indices, given the current values."""
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
            raise ValueError(f"no skill '{name}' is applied.{nearest(name, self._skills)}")

    def _check(self, name: str, skill: SparseSkill, instead: str | None = None) -> None:
        if name in self._skills and name != instead:
            raise ConfigError(f"a skill '{name}' is applied already; use each name once")
        others = [key for key, (_, own) in self._skills.items() if own.masks and key != instead]
        if skill.masks and others:
            raise CheckpointError(
                f"the skills '{name}' and '{others[0]}' both set weights to 0, and cannot be "
                "combined. Remove the other one first, or train one of them with --form added"
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
        """Restore the original weights, store those at the skills' entries, and add the skills."""
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
            tensor.put_(*self._remembered.pop(name))
        if not parts:
            return
        self._remembered[name] = union, originals
        total = originals.to(torch.float64, copy=True)
        for (weight, change), place in zip(parts, places, strict=True):
            changes = weight * change.values.to(tensor.device).double()
            total[torch.searchsorted(union, place)] += changes
        tensor.put_(union, total.to(tensor.dtype))

"""An inventory of skills over all parameters of a module, whatever its layers are."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import require_one_of
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import kind_for
from mttl.skills.weight_decay import decays


class ModuleInventory(nn.Module):
    r"""K skills, each a change of all parameters.

    A task composes its own: :math:`\theta_t = \theta_0 + \sum_k w_{tk} \phi_k`.

    Args:
        base: The module whose parameters the skills change; it is only looked at.
        n_skills: Skills K.
        kind: What a skill changes: every entry (``"dense"``), few entries, chosen at random and
            for good (``"sparse"``), or matrices by products of thin ones (``"lora"``, which leaves
            biases and other vectors alone).
        granularity: Which parameters share a routing row: all of the ``"model"``, or those of a
            ``"layer"``, that is of a module that holds parameters itself.
        **settings: What the kind takes: ``init``, and ``sparsity``, or ``rank`` and ``scale``.

    Attributes:
        groups: Names of the routed groups: ``"model"``, or the paths of the layers with skills.

    Raises:
        ValueError: If the kind or the granularity is unknown, or no parameter can have such skills.
    """

    role = "skills"

    def __init__(
        self,
        base: nn.Module,
        n_skills: int,
        *,
        kind: str,
        granularity: str = "model",
        **settings: Any,
    ) -> None:
        super().__init__()
        make = kind_for("composed", kind)
        require_one_of(("model", "layer"), granularity=granularity)
        groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self.skills = nn.Module()  # as nested as the base: parameters keep their paths
        for name, parameter in base.named_parameters():
            if parameter.ndim < make.smallest_ndim:
                continue
            skills = make.of_tensor(parameter.shape, n_skills, **settings)
            skills.set_path(name)
            if not decays(base, name):  # a change of a bias is one
                skills.undecayed = tuple(dict(skills.named_parameters()))
            _put(self.skills, name, skills.to(parameter.device, parameter.dtype))
            layer = name.rpartition(".")[0] if granularity == "layer" else "model"
            self._group_of[name] = groups.setdefault(layer, len(groups))
        if not groups:
            raise ValueError(
                f"the {type(base).__name__} has no parameter that can have skills of kind '{kind}'"
            )
        self.n_skills = n_skills
        self.groups = tuple(groups)

    @property
    def n_groups(self) -> int:
        """How many groups are routed apart."""
        return len(self.groups)

    def reset_parameters(self) -> None:
        for name in self._group_of:
            self._of(name).reset_parameters()

    def reset_skills(self, skills: Int[Tensor, "N"]) -> None:
        for name in self._group_of:
            self._of(name).reset_skills(skills)

    def merge(
        self, base: Mapping[str, Tensor], weights: Float[Tensor, "G T 1 K"]
    ) -> dict[str, Tensor]:
        """Return the parameters of every task: for one of shape (…), a tensor (T, …)."""
        rows = weights.unbind(0)
        n_tasks = weights.shape[1]
        return {
            name: self._of(name).compose(tensor, rows[self._group_of[name]])
            if name in self._group_of
            else tensor.expand(n_tasks, *tensor.shape)
            for name, tensor in base.items()
        }

    def _of(self, name: str) -> Inventory:
        return self.skills.get_submodule(name)  # type: ignore[return-value]


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Add ``module`` to ``root`` at a dotted path, with empty modules on the way."""
    *above, last = path.split(".")
    for part in above:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)

"""Modular skills for any network, by composing the parameters of each task.

::

    task ids ─ router ─ weights (G, T, 1, K) ─┐
    base θ0 ──────────────────────────────────┼─ merge ─ θ_t = θ0 + Σ_k w_tk φ_k ─┐
    inventory φ ──────────────────────────────┘                                   ▼
    arguments (T, …) ─────────────────────────────────────── the base's forward, T times

It needs the memory of T networks, so it suits small networks and few tasks; use
`mttl.skills.attach` for large backbones and many tasks.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mttl.io.errors import require_one_of
from mttl.routing.context import check_task_ids
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.token_router import token_layers
from mttl.skills.inventory import Inventory
from mttl.skills.kinds import kind_for
from mttl.skills.weight_decay import decays


class ModuleInventory(nn.Module):
    r"""K skills of all parameters: :math:`\theta_t = \theta_0 + \sum_k w_{tk} \phi_k`.

    The base is not modified here. The kind ``"dense"`` changes every entry of its parameters,
    ``"sparse"`` few random entries, and ``"lora"`` matrices, by low-rank products. Parameters that
    share routing weights are those of the ``"model"``, or of a ``"layer"``, which is a module with
    parameters of its own. Settings are those of the kind.

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
        self.skills = nn.Module()  # nested as the base, so that parameters keep their paths
        for name, parameter in base.named_parameters():
            if parameter.ndim < make.smallest_ndim:
                continue
            skills = make.of_tensor(parameter.shape, n_skills, **settings)
            skills.set_path(name)
            if not decays(base, name):  # the change of a bias counts as a bias
                skills.undecayed = tuple(dict(skills.named_parameters()))
            _put(self.skills, name, skills.to(parameter.device, parameter.dtype))
            layer = name.rpartition(".")[0] if granularity == "layer" else "model"
            self._group_of[name] = groups.setdefault(layer, len(groups))
        if not groups:
            raise ValueError(
                f"{type(base).__name__} has no parameter that skills of kind '{kind}' can change"
            )
        self.n_skills = n_skills
        self.groups = tuple(groups)  # names of the routed groups
        self.n_groups = len(groups)

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
    """Add ``module`` to ``root`` at a dotted path; missing parents become empty modules."""
    *above, last = path.split(".")
    for part in above:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)


class ComposedModel(nn.Module):
    """A network that runs with the composed parameters of several tasks.

    Args:
        base: Network of one task; it takes tensors and returns a tensor or a tuple of tensors.
        inventory: Skills of the base's parameters.
        router: Router of all groups, with one head.
        train_base: Whether the base's parameters are trained jointly with the skills. All tasks
            share them, so freeze them for private skills.

    Raises:
        ValueError: If the router has several heads, or a layer keeps running statistics.

    References:
        Ponti, Sordoni, Bengio and Reddy, *Combining Modular Skills in Multitask Learning*, 2022,
        arXiv:2202.13914: equation 3, with skills over all components of a policy as in section 3.
    """

    role = "backbone"  # of the base, which is neither skill nor router
    # Run tasks one after another ("loop") or together ("vmap"), which is faster for small batches
    # but copies activations for convolutions. "auto" loops if gradients are recorded on a CPU,
    # where batches are large.
    over_tasks = "auto"

    def __init__(
        self,
        base: nn.Module,
        inventory: ModuleInventory,
        router: TaskRouter,
        *,
        train_base: bool = True,
    ) -> None:
        super().__init__()
        if router.n_heads != 1:
            raise ValueError(f"n_heads ({router.n_heads}) must be 1 for skills of whole modules")
        for name, module in base.named_modules():
            if getattr(module, "track_running_stats", False):
                raise ValueError(
                    f"'{name}' keeps running statistics, which tasks cannot share; use group norms"
                )
        self.base = base.requires_grad_(train_base)
        self.inventory, self.router, self.groups = inventory, router, inventory.groups

    def token_layers(self) -> dict[str, Any]:
        """Return the layers of the base that route tokens, by their path."""
        return token_layers(self.base)

    @property
    def device(self) -> torch.device:
        return next(self.base.parameters()).device

    def forward(self, task_ids: Int[Tensor, "T"], *arguments: Tensor) -> Any:
        """Compose the parameters of some tasks and run the base with them.

        The router is called once, so a task has one sample of the routing for all its arguments.
        """
        return self.run(self.task_parameters(task_ids), *arguments)

    def task_parameters(self, task_ids: Int[Tensor, "T"]) -> dict[str, Tensor]:
        """Return the parameters of some tasks by name, each of shape (T, …).

        Call it once, without gradients, if many calls of `run` share them.
        """
        if task_ids.device.type == "cpu":  # on an accelerator, reading them would synchronise
            check_task_ids(task_ids, self.router.n_tasks)
        # Half precision would lose small changes of large values.
        with torch.autocast(self.device.type, enabled=False):
            return self._merge(self.router(task_ids))

    def run(self, parameters: Mapping[str, Tensor], *arguments: Tensor) -> Any:
        """Run the base with the parameters of T tasks."""
        first = next(iter(parameters.values()))
        n_tasks = len(first)
        for position, argument in enumerate(arguments):
            if argument.ndim == 0 or len(argument) != n_tasks:
                raise ValueError(
                    f"argument {position} of shape {tuple(argument.shape)} must have {n_tasks} rows"
                )
        learns_on_cpu = torch.is_grad_enabled() and first.device.type == "cpu"
        looped = self.over_tasks == "loop" or (self.over_tasks == "auto" and learns_on_cpu)
        if not looped and n_tasks > 1:  # tasks draw independent noise, as in the loop
            return vmap(self._call, randomness="different")(dict(parameters), arguments)
        # Unbinding has one backward step for all tasks; indexing allocates a tensor for each.
        of_tasks = zip(*(tensor.unbind(0) for tensor in parameters.values()), strict=True)
        outputs = [
            self._call(
                dict(zip(parameters, own, strict=True)),
                tuple(argument[task] for argument in arguments),
            )
            for task, own in enumerate(of_tasks)
        ]
        if isinstance(outputs[0], Tensor):
            return torch.stack(outputs)
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))

    @torch.no_grad()
    def task_module(self, task_id: int) -> nn.Module:
        """Return a copy of the base with the parameters of one task, composed without noise."""
        check_task_ids(torch.tensor([task_id]), self.router.n_tasks)
        parameters = self._merge(self.router.matrix()[:, task_id : task_id + 1])
        module = copy.deepcopy(self.base)
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters[name][0])
        return module

    def _merge(self, weights: Float[Tensor, "G T 1 K"]) -> dict[str, Tensor]:
        return self.inventory.merge(dict(self.base.named_parameters()), weights)

    def _call(self, parameters: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
        return functional_call(self.base, parameters, arguments)

"""Two processes that share the experts give what one process gives.

All sums are of a few dozen float32 products, in another order.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers import parallel_experts as shared
from helpers.nodes import run_processes
from mttl.moe import expert_slice
from mttl.moe.parallel import check_shardable, make_whole, shared_names, shared_parameters
from mttl.routing import Tokens
from mttl.skills import AdapterInventory, IA3Inventory, LoRAInventory

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind."""
    folder = tmp_path_factory.mktemp("parallel")
    run_processes(shared.work, folder, n_processes=shared.WORLD)
    return folder


def expected(kind: str, case: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One process with all tokens: results, and gradients of parameters."""
    experts, router = shared.make(kind)
    parts = [shared.tokens(case, rank) for rank in range(shared.WORLD)]
    x, target = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    # The mean over processes of their losses: half of the sum over tokens, and the one balance.
    x.requires_grad_()
    assignment = router(Tokens(x))
    y = experts.dispatch(x, assignment)
    owed = torch.stack([*assignment.losses.values()]).sum()
    ((y * target).sum() / shared.WORLD + owed).backward()
    gradients = {name: parameter.grad for name, parameter in experts.named_parameters()}
    found = {"y": y.detach(), "owed": owed.detach(), "x": x.grad * shared.WORLD}
    return found, gradients | {"router": router.weight.grad}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", shared.KINDS)
@pytest.mark.parametrize("case", shared.CASES)
def test_two_processes_equal_one(folder: Path, kind: str, case: str) -> None:
    results = [
        {
            name.removeprefix(f"{kind}/{case}/"): value
            for name, value in found.items()
            if name.startswith(f"{kind}/{case}/")
        }
        for found in shared.read(folder)
    ]
    found, gradients = expected(kind, case)
    torch.testing.assert_close(torch.cat([r["y"] for r in results]), found["y"], **CLOSE)
    for result in results:
        torch.testing.assert_close(result["owed"], found["owed"], **CLOSE)
        torch.testing.assert_close(result["router"], gradients["router"], **CLOSE)
    # Of the sum of the processes' losses: a mean would be taken by the optimizer's gradients only.
    torch.testing.assert_close(torch.cat([r["x"] for r in results]), found["x"], **CLOSE)
    for name, whole in gradients.items():
        if name != "router":
            local = torch.cat([r[f"experts.{name}"] for r in results])
            torch.testing.assert_close(local, whole, **CLOSE)


def test_a_slice_is_a_copy_of_some_experts_which_divide_evenly(folder: Path) -> None:
    message = (folder / "refused0.txt").read_text()
    assert message.startswith("3 experts cannot be divided among 2 processes")
    whole = AdapterInventory(6, 6, 4, hidden_features=3)
    part = expert_slice(whole, 1, 3)
    assert part.n_skills == part.blocks.n_skills == 2
    assert torch.equal(part.blocks.up, whole.blocks.up[1:3])
    with torch.no_grad():
        part.blocks.up.zero_()
    assert whole.blocks.up[1:3].all()


def test_experts_that_cannot_be_taken_apart_are_refused() -> None:
    experts = LoRAInventory(6, 6, 4)
    for kind in (experts, IA3Inventory(6, 6, 4), AdapterInventory(6, 6, 4, hidden_features=3)):
        check_shardable(kind)
    experts.register_buffer("common", torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"'common' of LoRAInventory has the shape \(6, 4\);"):
        check_shardable(experts)


def test_a_model_that_shares_nothing_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    make_whole(model)
    assert not shared_names(model)
    assert not shared_parameters(model)

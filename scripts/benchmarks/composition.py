"""Compare the cost of composed policies: skills of three kinds, tasks in a loop or all at once.

    python scripts/benchmarks/composition.py [--channels 32 128] [--tasks 5 8] [--json FILE]

*Acting* is one step of every environment without gradients, with parameters composed beforehand, as
in a rollout. *Learning* is forward and backward of sequences of 20 steps, composition included. The
floor is one network that sees the frames of all tasks together; skills can cost no less.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from _common import Step, parse_arguments, positive, report, run

if TYPE_CHECKING:  # the parent process never loads these
    from torch import Tensor

    from mttl.babyai.policy import Policy
    from mttl.skills.composed.composed_model import ComposedModel

FLOOR = "one network"
KINDS = ("dense", "sparse", "lora")
VARIANTS = (FLOOR, *(f"{over}, {kind}" for over in ("loop", "vmap") for kind in KINDS))
USES = {"acting": 1, "learning": 20}  # steps of a sequence
N_SKILLS, N_TOKENS, N_WORDS = 9, 40, 10


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Cost of composed policies, by kind of skill.")
    parser.add_argument("--channels", type=positive, nargs="+", default=[32, 128])
    parser.add_argument("--tasks", type=positive, nargs="+", default=[5, 8], help="(%(default)s)")
    parser.add_argument("--uses", nargs="+", choices=tuple(USES), default=list(USES))
    parser.add_argument("--slots", type=positive, default=8, help="of each task (%(default)s)")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=())
    rows: list[dict[str, Any]] = []
    for use in settings.uses:
        for n_channels in settings.channels:
            for n_tasks in settings.tasks:
                case = {"use": use, "n_channels": n_channels, "n_tasks": n_tasks}
                found = run(build, argparse.Namespace(**vars(settings), **case))
                name = f"{use} {n_channels}/{n_tasks}"
                rows += [{**row, "name": f"{name} {row['name']}"} for row in found]
    title = f"composed policies by channels/tasks, {settings.slots} slots, {N_SKILLS} skills"
    columns = {"peak_mib": "peak memory, MiB above start", "trainable": "trainable, millions"}
    report(rows, settings, title=title, unit="ms", columns=columns)
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant."""
    import torch

    from mttl.babyai.policy import Policy

    torch.manual_seed(0)
    size = 128 if settings.n_channels >= 128 else 64  # memory and instruction: as far as useful
    policy = Policy(
        N_TOKENS,
        n_channels=settings.n_channels,
        memory_size=size,
        instruction_size=size,
        word_size=size,
    )
    inputs = make_inputs(settings.n_tasks, USES[settings.use], settings.slots, size)
    if variant == FLOOR:
        parameters = list(policy.parameters())
        joined = join_tasks(*inputs)
        forward = act = lambda: policy(*joined)
    else:
        over_tasks, kind = variant.split(", ")
        model = compose(policy, kind, over_tasks, settings.n_tasks)
        parameters = list(model.parameters())
        task_ids = torch.arange(settings.n_tasks)
        with torch.no_grad():
            composed = model.task_parameters(task_ids)
        forward = lambda: model(task_ids, *inputs)  # noqa: E731
        act = lambda: model.run(composed, *inputs)  # noqa: E731
    facts = {"trainable": sum(parameter.numel() for parameter in parameters) / 1e6}
    if settings.use == "acting":
        return torch.no_grad()(act), facts

    def learn() -> None:
        for parameter in parameters:
            parameter.grad = None
        logits, values, _ = forward()
        (logits.square().mean() + values.square().mean()).backward()

    return learn, facts


def compose(policy: "Policy", kind: str, over_tasks: str, n_tasks: int) -> "ComposedModel":
    """Return the composed model of a variant, with a learned router."""
    from mttl.routing import PolytroponRouter
    from mttl.skills.composed.composed_model import ComposedModel
    from mttl.skills.composed.module_inventory import ModuleInventory

    inventory = ModuleInventory(policy, N_SKILLS, kind=kind, init="kaiming")
    router = PolytroponRouter(inventory.n_groups, n_tasks, 1, N_SKILLS)
    return ComposedModel(policy, inventory, router, over_tasks=over_tasks)


def make_inputs(n_tasks: int, n_steps: int, n_slots: int, size: int) -> "tuple[Tensor, ...]":
    """Return what a policy reads, with an axis of tasks first and a mission per environment."""
    import torch

    cells = (n_tasks, n_steps, n_slots, 7, 7)
    numbers = [torch.randint(0, high, cells) for high in (11, 6, 3)]  # type, colour, door
    return (
        torch.stack(numbers, dim=-1).to(torch.uint8),
        torch.randint(1, N_TOKENS, (n_tasks, n_slots, N_WORDS)),
        torch.arange(n_slots).expand(n_tasks, n_steps, n_slots),
        torch.zeros(n_tasks, n_slots, 2 * size),
        torch.rand(n_tasks, n_steps, n_slots) < 1 / 32,
    )


def join_tasks(
    images: "Tensor", missions: "Tensor", index: "Tensor", memory: "Tensor", begins: "Tensor"
) -> "tuple[Tensor, ...]":
    """Return the same frames as those of one task with more environments."""
    import torch

    first = torch.arange(len(missions))[:, None, None] * missions.shape[1]
    images, index, begins = (
        tensor.transpose(0, 1).flatten(1, 2) for tensor in (images, index + first, begins)
    )
    return images, missions.flatten(0, 1), index, memory.flatten(0, 1), begins


if __name__ == "__main__":
    sys.exit(main())

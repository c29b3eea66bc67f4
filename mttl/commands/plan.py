"""Estimate the memory per process of a training, without loading any weights.

mttl plan -c crossfit.yaml
mttl plan -c crossfit.yaml+trainer/gpu.yaml --processes 8 --gpu-memory 24 80
mttl plan -c crossfit.yaml --backbones configs/sizes/* --gpu-memory 24 80

The model is built without weights. A training step and the generation of answers are traced at the
maximum lengths of the settings, without computation. Only the backbone's config.json is read, and
its tokenizer if data.fit_lengths is set.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mttl.commands.name_checks import check_tasks
from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable

if TYPE_CHECKING:
    from mttl.config.schema import Config


def _declare(parser: CommandParser) -> None:
    parser.add_config()
    add = parser.work.add_argument
    add("--processes", **POSITIVE, help="number of processes (from the section trainer)")
    sizes = dict(POSITIVE, metavar="GIB")
    help = "GPU memory in GiB; prints whether the run fits"
    add("--gpu-memory", **sizes, nargs="+", default=[], help=help)
    add("--tasks", **POSITIVE, help="number of tasks (those of the configuration)")
    help = "folders with a config.json, to compare backbones"
    add("--backbones", nargs="+", metavar="DIR", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Estimate the memory and print it."""
    from mttl.config.load import load_config

    config = load_config(options.config, options.override)
    if options.tasks is None:
        check_tasks(config)
    from mttl.assembly.trainer import processes_of, with_shared_batches

    n_processes = options.processes or processes_of(config.trainer)[0]
    config = with_shared_batches(config, n_processes)
    from mttl.assembly.planning.memory_plan import needs_of

    if options.tasks is not None:
        tasks, heads = [f"task {number}" for number in range(options.tasks)], {}
    else:
        from mttl.commands.train_tasks import fitted, with_tasks

        config, _, tasks, heads = with_tasks(fitted(config))
    report = _compare if options.backbones else _show
    report(config, partial(needs_of, tasks=tasks, heads=heads), options, n_processes)


def _show(
    config: "Config", needs_of: Callable[..., Any], options: argparse.Namespace, n_processes: int
) -> None:
    quantize = getattr(config.backbone, "quantize", None)
    plan = needs_of(config).plan(config.trainer.strategy, n_processes, quantize)
    title = f"Memory in GiB per process ({n_processes} in total), {config.data.batch_size} rows"
    table = TextTable(title).words("part").numbers("training", "answering")
    sides = (plan.training, plan.answering)
    for part in dict.fromkeys((*plan.training, *plan.answering)):
        table.add(part, then=(_gib(side.get(part, 0)) for side in sides))
    table.add_section()
    table.add("sum", then=(_gib(sum(side.values())) for side in sides))
    console = make_console()
    console.print(table)
    for gib in options.gpu_memory:
        console.print(f"{gib} GiB: {'fits' if plan.fits(gib) else 'does not fit'}")


def _compare(
    config: "Config", needs_of: Callable[..., Any], options: argparse.Namespace, n_processes: int
) -> None:
    ways = {
        "ddp": ("ddp", n_processes),
        "ddp, nf4": ("ddp", n_processes, "nf4"),
        f"fsdp2 on {n_processes}": ("fsdp2", n_processes),
    }
    console = make_console()
    sizes = ", ".join(map(str, options.gpu_memory))
    title = f"GiB per process ({n_processes} in total) → smallest sufficient GPU of {sizes} GiB"
    console.print(title)
    console.print(f"| backbone | {' | '.join(ways)} |")
    console.print(f"|---|{'--:|' * len(ways)}")
    for folder in options.backbones:
        needs, cells = needs_of(_on(config, folder)), []
        for way in ways.values():
            plan = needs.plan(*way)
            fitting = [gib for gib in sorted(options.gpu_memory) if plan.fits(gib)]
            cells.append(f"{_gib(plan.peak)} → {fitting[0] if fitting else 'none'}")
        console.print(f"| {Path(folder).name} | {' | '.join(cells)} |", soft_wrap=True)


def _on(config: "Config", folder: str) -> "Config":
    """Return the configuration with another pretrained backbone."""
    from mttl.config.backbone_schema import Pretrained

    kept = config.backbone.model_dump(exclude={"kind", "name", "model_type", "config"})
    kept = {name: value for name, value in kept.items() if name in Pretrained.model_fields}
    backbone = Pretrained(kind="pretrained", name=folder, **kept)
    return config.model_copy(update={"backbone": backbone})


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"

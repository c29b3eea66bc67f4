"""What `mttl train --dry-run` prints for policies."""

from mttl.assembly.trainer import processes_of, with_shared_slots
from mttl.babyai.build_policy import build_policies
from mttl.config.babyai_schema import BabyAIConfig
from mttl.runtime.command import make_console
from mttl.runtime.text_table import TextTable


def dry_run(config: BabyAIConfig) -> None:
    """Print parameters, environments and the number of steps; nothing is played or written."""
    rl, n_levels = config.rl, len(config.rl.levels)
    n_processes, _ = processes_of(config.trainer)
    model = build_policies(config, rl.levels)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained, total = sum(n for n, needed in sizes if needed), sum(n for n, _ in sizes)
    table = TextTable(f"Dry run of '{config.run.name}'").words("", "")
    table.add("levels", n_levels)
    table.add("parameters", f"{trained:,} of {total:,} are trained")
    epochs = config.trainer.max_epochs or 0
    if rl.demonstrations is not None:
        rows = n_processes * n_levels * rl.imitation.batch_size
        parts = f"{n_processes} processes × {n_levels} levels × {rl.imitation.batch_size}"
        table.add("demonstrations per step", f"{rows:,} = {parts}")
        table.add("passes", f"{epochs:,}")
    else:
        own = with_shared_slots(rl, n_processes).n_slots
        n_slots = n_processes * n_levels * own
        parts = f"{n_processes} processes × {n_levels} levels × {own}"
        table.add("environments", f"{n_slots:,} = {parts}")
        table.add("rollouts", f"{epochs:,} at most, of {n_slots * rl.ppo.n_steps:,} frames each")
        table.add("steps per rollout", rl.ppo.n_epochs * rl.ppo.n_minibatches)
    table.add("time", "not estimated: it depends on how soon the levels are solved")
    make_console().print(table)

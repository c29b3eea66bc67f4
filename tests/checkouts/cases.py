"""What is run in both checkouts: short commands with fixed seeds, and what they build on."""

from dataclasses import dataclass

TASKS = ("verb_past", "noun_plural")
TEXT = "trainer.max_steps=30 trainer.val_check_interval=10 trainer.log_every_n_steps=5"
ROWS = "data.max_rows=8 data.max_eval_rows=2"
LEVELS = "[GoToObjS4,GoToRedBallNoDists]"


@dataclass(frozen=True)
class Case:
    """Commands that leave folders, run in a folder of its own, into which what it needs is copied.

    So it can also start from what another checkout has left. The files of a case that is stopped
    are not compared: when it stops is a matter of timing.
    """

    name: str
    commands: tuple[str, ...]  # of ``mttl``, with their arguments, run one after another
    makes: tuple[str, ...]  # folders that they leave
    needs: tuple[str, ...] = ()  # cases whose folders have to be there
    files: tuple[tuple[str, str], ...] = ()  # that the commands read: names and texts
    stop_at: str | None = None  # the file at whose appearance the command is asked to stop


def train(name: str, settings: str, config: str = "crossfit.yaml+backbone/tiny_t5.yaml") -> str:
    """Return the command that trains on the CPU, into ``runs/NAME``."""
    return f"train -c {config} -k run.dir=runs run.name={name} trainer.accelerator=cpu {settings}"


RECIPE = """\
base: {model: average}
models: [{model: task, weight: 0.5}, {model: other, weight: 0.3, role: anti_expert}]
method: {kind: ties}
"""
INTERRUPTED = train("interrupted", f"{TEXT} {ROWS}")
LAST = "runs/interrupted/checkpoints/last.ckpt"
SHORT = f"trainer.max_steps=8 trainer.val_check_interval=4 {ROWS}"
TOKENS = "crossfit.yaml+backbone/tiny_t5.yaml+router/token_top2.yaml"
PLAYED = f"rl.levels={LEVELS} rl.n_slots=4 rl.evaluation.n_episodes=4 trainer.max_epochs=3"
CASES = (
    Case("text", (train("text", f"{TEXT} {ROWS}"),), ("runs/text",)),
    Case("interrupted", (INTERRUPTED,), ("runs/interrupted",), stop_at=LAST),
    Case("tokens", (train("tokens", SHORT, TOKENS),), ("runs/tokens",)),
    Case("babyai", (train("babyai", PLAYED, "babyai.yaml"),), ("runs/babyai",)),
    Case("resumed", (f"{INTERRUPTED} --resume",), ("runs/interrupted",), needs=("interrupted",)),
    Case(
        "adaptation",
        (
            "adapt -c crossfit.yaml --from runs/text --tasks gerund_past,date_de_iso "
            "--out adapted -k adapt.max_steps=5 data.max_eval_rows=8",
        ),
        ("adapted",),
        needs=("text",),
    ),
    Case(
        "new level",
        (
            "adapt -c babyai.yaml --from runs/babyai --tasks GoToLocalS6N2 --out adapted "
            "-k adapt.n_updates=3 rl.n_slots=4 rl.evaluation.n_episodes=4",
        ),
        ("adapted",),
        needs=("babyai",),
    ),
    Case(
        "merged tasks",
        (
            "merge-task runs/text --average --out average",
            f"merge-task runs/text --task {TASKS[0]} --out task",
            f"merge-task runs/text --task {TASKS[1]} --out other",
        ),
        ("average", "task", "other"),
        needs=("text",),
    ),
    Case(
        "merged models",
        ("merge recipe.yaml --out merged",),
        ("merged",),
        needs=("merged tasks",),
        files=(("recipe.yaml", RECIPE),),
    ),
    Case(
        "exports",
        (
            f"export runs/text --task {TASKS[0]} --out lora",
            "export runs/text --inventory --out poly",
        ),
        ("lora", "poly"),
        needs=("text",),
    ),
)
BY_NAME = {case.name: case for case in CASES}


def with_needs(names: list[str]) -> list[Case]:
    """Return the cases of these names and all that they need, needed ones first."""
    wanted = set(names)
    for case in reversed(CASES):
        if case.name in wanted:
            wanted.update(case.needs)
    return [case for case in CASES if case.name in wanted]

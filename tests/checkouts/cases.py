"""What is run in both checkouts: short commands with fixed seeds, and what they build on."""

from dataclasses import dataclass

TASKS = ("verb_past", "noun_plural")
TEXT = "trainer.max_steps=30 trainer.val_check_interval=10 trainer.log_every_n_steps=5"
ROWS = "data.max_rows=8 data.max_eval_rows=2"
LEVELS = "[GoToObjS4,GoToRedBallNoDists]"


@dataclass(frozen=True)
class Case:
    """Commands that leave folders.

    Every case runs in a folder of its own, into which what it needs is copied: so that it can also
    start from what another checkout has left.

    Args:
        name: Of the case.
        commands: Of ``mttl``, with their arguments, run one after another.
        makes: The folders that they leave.
        needs: The cases whose folders have to be there.
        files: Files that the commands read, by name, and their texts.
        stop_at: The file at whose appearance the (only) command is asked to stop. When that happens
            is a matter of timing, so the files of such a case are not compared.
    """

    name: str
    commands: tuple[str, ...]
    makes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    stop_at: str | None = None


def train(name: str, settings: str, config: str = "crossfit.yaml+backbone/tiny_t5.yaml") -> str:
    """Return the command that trains on the CPU, into ``runs/NAME``."""
    return f"train -c {config} -k run.dir=runs run.name={name} trainer.accelerator=cpu {settings}"


RECIPE = """\
base: {model: average}
models: [{model: task, weight: 0.5}, {model: other, weight: 0.3, role: anti_expert}]
method: {kind: ties}
"""
INTERRUPTED = train("interrupted", f"{TEXT} {ROWS}")
CASES = (
    Case("text", (train("text", f"{TEXT} {ROWS}"),), ("runs/text",)),
    Case(
        "interrupted",
        (INTERRUPTED,),
        ("runs/interrupted",),
        stop_at="runs/interrupted/checkpoints/last.ckpt",
    ),
    Case(
        "tokens",
        (
            train(
                "tokens",
                f"trainer.max_steps=8 trainer.val_check_interval=4 {ROWS}",
                "crossfit.yaml+backbone/tiny_t5.yaml+router/token_top2.yaml",
            ),
        ),
        ("runs/tokens",),
    ),
    Case(
        "babyai",
        (
            train(
                "babyai",
                f"rl.levels={LEVELS} rl.n_slots=4 rl.evaluation.n_episodes=4 trainer.max_epochs=3",
                "babyai.yaml",
            ),
        ),
        ("runs/babyai",),
    ),
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
            *(
                f"merge-task runs/text --task {task} --out {out}"
                for task, out in zip(TASKS, ("task", "other"), strict=True)
            ),
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

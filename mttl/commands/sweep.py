"""Sweep the weight λ of merges: merge, answer the rows of a task, and score the answers.

mttl sweep sweep.yaml --out runs/sweep
mttl sweep sweep.yaml --split test --out runs/sweep_test

docs/howto/merge.md describes the file. The output has scores.csv and figures of the first metric
against the others, with a curve per method; the base has the weight 0. Merged models are not kept.
An interrupted sweep continues; weights, methods and metrics may be added.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from mttl.commands.name_checks import check_run_task
from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError, raised_as
from mttl.io.files import write_table
from mttl.runtime.command import make_console, say


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("sweep", metavar="SWEEP", help="YAML file of the sweep")
    add("--split", choices=("dev", "test"), help="rows of the task to answer (dev)")
    parser.written.add_argument("--out", required=True, metavar="DIR", help="output folder")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Merge, answer and score; print and write the scores, and draw the figures."""
    from mttl.merging.recipe import Sweep, read_section

    sweep, out = read_section(options.sweep, Sweep), Path(options.out)
    check_run_task(sweep.task, sweep.run)
    split = options.split or "dev"
    if sweep.table and options.split:
        raise ConfigError(f"--split has no effect on the table '{sweep.table}'; remove one")
    kinds = [(name, weight) for name, one in sweep.methods.items() for weight in one.weights]
    points = {f"{name} λ={weight:g}": (name, weight) for name, weight in kinds}
    recipes = {job: sweep.recipe(*point) for job, point in points.items()}
    points = {"base": ("base", 0.0), **points}

    from mttl.adaptation.resumable_jobs import ResumableJobs, keep_settings
    from mttl.analysis.figures.canvas import save_figure
    from mttl.analysis.figures.curves import trade_offs
    from mttl.assembly.model import load_run
    from mttl.checkpoints.inventory_files import inventory_digest, inventory_folder
    from mttl.commands.answer_scores import check_metrics, score_rows, score_table
    from mttl.commands.prediction_table import ANSWER, Answered
    from mttl.io.yaml12 import dump
    from mttl.merging.fold import strip
    from mttl.merging.run import merge_models
    from mttl.models.backbone import load_pretrained
    from mttl.runtime.processes import device_of

    check_metrics(sweep.metrics, "metrics")
    built = load_run(sweep.run)
    built.require(merges="mttl sweep")
    strip(built.model)
    built.model.to(device_of())
    rows = rows_of(sweep.task, built, split, sweep.table)

    def work(job: str, _: object) -> Answered:
        with tempfile.TemporaryDirectory(dir=out) as folder:
            model = str(Path(folder) / "merged") if job in recipes else sweep.base.model
            if job in recipes:
                merge_models(recipes[job], model)
            with raised_as(ConfigError, f"'{sweep.run}' has another backbone", RuntimeError):
                built.model.backbone.load_state_dict(load_pretrained(model).state_dict())
        answers = built.predict(sweep.task, [str(row["input"]) for row in rows], **sweep.generation)
        return Answered(job=job, rows=[{ANSWER: answer} for answer in answers])

    kept = sweep.model_dump(mode="json", exclude={"methods", "metrics"}) | {"split": split}
    kept["rows"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    runs = [sweep.run, *(model.run for model in sweep.models if model.run)]
    kept["inventories"] = [inventory_digest(inventory_folder(run)) for run in runs]
    keep_settings(out / "sweep.yaml", dump(kept), f"'{out}' has answers of other settings")
    for name, one in sweep.methods.items():
        text, problem = dump(one.method.model_dump()), f"'{out}' has another method '{name}'"
        keep_settings(out / "methods" / f"{name}.yaml", text, problem)
    results = ResumableJobs(out / "results.jsonl", Answered)
    results.run([*points], work, make_console(stderr=True), doing="merging and answering")
    answers = [row[ANSWER] for job in points for row in results.finished[job].rows]
    jobs, metrics = [job for job in points for _ in rows], dict.fromkeys(points, sweep.metrics)
    scores = score_rows(rows * len(points), jobs, answers, metrics)
    make_console().print(score_table(scores))
    lines = [
        {"method": name, "weight": weight}
        | {one.metric: one.score for one in scores if one.task == job}
        for job, (name, weight) in points.items()
    ]
    write_table(out / "scores.csv", ["method", "weight", *sweep.metrics], lines)
    title = f"{sweep.task}, {sweep.table or f'{split} rows'}; numbers are λ"
    save_figure(trade_offs(lines, sweep.metrics, title=title), out / "sweep")
    say(f"The scores and figures are in {out}")


def rows_of(task: str, built: Any, split: str, table: str | None) -> list[dict[str, Any]]:
    """Return rows with input, output and other columns: of a table, or of the run's own tasks."""
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym
    from mttl.inference.input_table import check_questions, check_references, read_rows

    if table is None:
        config = load_config([str(built.folder.parent / "config.yaml")], plugins=None)
        gym, most = open_gym(config), config.data.max_eval_rows
        found = [row for n in config.data.samples for row in gym.rows(task, split, n, most)]
        return [{**row.columns, "input": row.input, "output": [*row.outputs]} for row in found]
    rows, _ = read_rows(table)
    template = built.form.task_templates.get(task)
    for n, row in enumerate(rows, 1):
        if template is not None and template.applies(row):
            row |= template.filled(row, f"{table}, row {n}")
    check_questions(rows, table)
    check_references(rows, table, "add it, as in the column 'output'")
    return rows

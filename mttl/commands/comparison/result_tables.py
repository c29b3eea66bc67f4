"""Tables and figure of the scores and costs of a comparison's finished runs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from jinja2 import Template

from mttl.adaptation.plan import Results
from mttl.commands.comparison.comparison_folder import MethodComparison
from mttl.commands.comparison.existing import ExistingRuns, other_settings, read_scores
from mttl.commands.comparison.methods import FIXED_ROUTERS, AdaptationVariant, Plan
from mttl.commands.comparison.tables import (
    TableRow,
    TaskScore,
    by_seed,
    flat_row,
    label,
    main_table,
    mean_score,
    paired_difference,
    task_table,
)
from mttl.io.errors import MttlError
from mttl.io.files import write_table, write_text
from mttl.io.reading import read_json

# By method and mode; the mode is empty for training tasks.
Groups = defaultdict[tuple[str, str], list[TaskScore]]
CAPTION = Path(__file__).with_name("caption.jinja")


def write_tables(
    comparison: MethodComparison, plans: list[Plan], existing: Sequence[ExistingRuns] = ()
) -> str:
    """Write the tables of finished runs, and return them as Markdown."""
    reference = comparison.reference
    scores: list[TaskScore] = []
    for item in plans:
        if comparison.cost(item, "train").ended:
            modes = [variant.name for variant in item.variants]
            ended = [mode for mode in modes if comparison.cost(item, f"adapt-{mode}").ended]
            run = comparison.run_folder(item)
            scores += read_scores(run, item.name, item.seed, ended, item.fold)
    for runs in existing:
        scores += runs.scores
    if not scores:
        return ""
    groups: Groups = defaultdict(list)
    for score in scores:
        groups[score.method, score.mode].append(score)
    # Methods, then the further adaptation variants of them.
    planned = {(item.name, variant.name): variant for item in plans for variant in item.variants}
    columns = [one for one in sorted(planned, key=lambda one: one[1] != "all") if one in groups]
    lines = []
    for method, mode in columns:
        costs = _costs(comparison, plans, method, planned[method, mode])
        lines.append(_line(method, mode, groups, reference, *costs))
    for runs in existing:
        modes = {score.mode or "all" for score in runs.scores}  # training tasks have a row as well
        for mode in sorted(modes, key=lambda mode: (mode != "all", mode)):
            columns.append((runs.name, mode))
            lines.append(_line(runs.name, mode, groups, reference, runs.folders))
    text = f"{_caption(comparison, plans, existing)}\n\n{main_table(lines, reference)}"
    for heading, kept in (
        ("Unseen tasks, every method:", [column for column in columns if column[1] == "all"]),
        ("Unseen tasks, every mode:", [column for column in columns if column[0] == reference]),
    ):
        if len(kept) > 1:
            unseen = [score for score in scores if (score.method, score.mode) in kept]
            text += f"\n{heading}\n\n{task_table(unseen, kept)}"
    from mttl.analysis.figures.canvas import save_figure
    from mttl.commands.comparison.figure import comparison_figure  # imports matplotlib

    shown = {
        "seen": [_seen(groups, *one) for one in columns],
        "unseen": [groups[one] for one in columns],
    }
    seeds = {side: [[*by_seed(own).values()] for own in found] for side, found in shown.items()}
    save_figure(comparison_figure(lines, seeds, reference), comparison.out / "comparison")
    write_text(comparison.out / "table.md", text)
    for name, table in (("table", lines), ("scores", scores)):
        rows = [flat_row(row) for row in table]
        write_table(comparison.out / f"{name}.csv", list(rows[0]), rows)
    return text


def _line(
    method: str, mode: str, groups: Groups, reference: str, runs: Sequence[Path], *costs: float
) -> TableRow:
    """Return one row of the main table; finished runs have no recorded costs."""
    seen, unseen = _seen(groups, method, mode), groups[method, mode]
    compared = groups[reference, "all"]
    if not compared and method != reference:
        compared = groups[reference, mode]
    return TableRow(
        *(label(method, mode), n_trained_in(runs, mode), len(by_seed(unseen or seen))),
        *(mean_score(seen), mean_score(unseen)),
        paired_difference(seen, groups[reference, ""]),
        paired_difference(unseen, compared),
        *costs,
    )


def _seen(groups: Groups, method: str, mode: str) -> list[TaskScore]:
    """Return the scores of the training tasks, which do not depend on the mode."""
    return groups[method, ""] if mode == "all" else []


def _costs(
    comparison: MethodComparison, plans: list[Plan], method: str, variant: AdaptationVariant
) -> tuple[list[Path], float, float, float]:
    """Return an adapted run, minutes of training and of adaptation, and the peak memory."""
    items = [item for item in plans if item.name == method]
    training = [cost for item in items if (cost := comparison.cost(item, "train")).ended]
    adapted = [item for item in items if comparison.cost(item, f"adapt-{variant.name}").ended]
    adapting = [comparison.cost(x, stage) for x in adapted for stage in comparison.stages(variant)]
    return (
        [comparison.run_folder(adapted[0])],
        fmean(c.cpu_minutes for c in training) if training and variant.name == "all" else math.nan,
        sum(cost.cpu_minutes for cost in adapting) / len(adapted),
        max(cost.peak_mib for cost in training + adapting),
    )


def n_trained_in(runs: Sequence[Path], mode: str) -> int:
    """Return the number of trained parameters of skills and router, by training or adaptation.

    For training they are counted from file headers.
    """
    if mode != "all":
        places = (run / f"adapt-{mode}" for run in runs)
        return next(x.n_trained for place in places for x in Results(place).finished.values())
    from mttl.checkpoints.model_tensors import TOKENS
    from mttl.checkpoints.saved_inventory import count_saved  # imports PyTorch

    skills = runs[0] / "skills"
    settings = read_json(skills / "meta.json", MttlError, dict)["settings"]
    # Token routers are trained even if the task router is fixed.
    learned = TOKENS if settings["router"]["kind"] in FIXED_ROUTERS else ""
    routers = count_saved(skills / "router.safetensors", learned)
    # Of policies, those that levels share; if they are frozen, their experts.
    common = 0
    if (trained := settings.get("train_base")) is not None:
        common = count_saved(skills / "backbone.safetensors", "" if trained else "experts.")
    return count_saved(skills / "skills.safetensors") + routers + common


def _caption(
    comparison: MethodComparison, plans: list[Plan], existing: Sequence[ExistingRuns]
) -> str:
    known = [comparison.run_folder(item) for item in plans if item.name == comparison.reference]
    known += [runs.folders[0] for runs in existing if runs.name == comparison.reference]
    first = next((run for run in known if (run / "config.yaml").is_file()), None)
    others = [runs for runs in existing if runs.name != comparison.reference]
    differing = other_settings(first, others) if first is not None else ""
    planned = {item.seed for item in plans}
    sentences = Template(CAPTION.read_text("utf-8"), trim_blocks=True).render(
        own=comparison,
        plans=plans,
        existing=existing,
        planned_seeds=sorted(planned),
        seeds=planned.union(*(runs.seeds for runs in existing)),
        folds=sorted({item.fold for item in plans}),
        ended=sum(comparison.has_ended(item) for item in plans),
    )
    return " ".join(sentences.split()) + (f"\n\n{differing}" if differing else "")

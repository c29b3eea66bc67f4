"""The scores and costs of what has ended in a comparison, as tables and a figure."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mttl.adaptation.results import Results
from mttl.comparison.comparison_folder import Comparison
from mttl.comparison.existing import ExistingRuns, other_settings, read_unseen
from mttl.comparison.methods import FIXED_ROUTERS, Plan, Way
from mttl.comparison.rates import FACTORS
from mttl.comparison.tables import (
    Line,
    Score,
    by_seed,
    label,
    main_table,
    mean_score,
    paired_difference,
    task_table,
    to_csv,
)
from mttl.errors import MttlError
from mttl.io.files import write_text
from mttl.io.reading import read_json

TOKEN_CAPTION = (
    " Where tokens choose experts: the entropy of the experts' loads over its maximum and the "
    "share of choices that found no room, on test rows, means over layers."
)
RUNS_CAPTION = (
    " Ways to adapt are compared with the reference adapted by `all`; where it was not, with the "
    "reference adapted in the same way."
)
RATES_CAPTION = (
    " Each method was adapted with its own best rates of skills and router (with how many "
    f"trainings chose them): the configured ones times {', '.join(f'{x:g}' for x in FACTORS)}, "
    "by development rows of development tasks, which are neither trained nor unseen."
)


def read_scores(comparison: Comparison, plans: list[Plan]) -> list[Score]:
    """Read the scores of all that has ended."""
    found: list[Score] = []
    for item in plans:
        run = comparison.run_folder(item)
        if comparison.cost(item, "train").ended:
            found += comparison.seen_scores(item)
        for way in item.ways:
            if comparison.cost(item, f"adapt-{way.name}").ended:
                place = run / f"adapt-{way.name}"
                found += read_unseen(place, item.name, way.name, item.seed, item.fold)
    return found


def write_tables(
    comparison: Comparison, plans: list[Plan], existing: Sequence[ExistingRuns] = ()
) -> str:
    """Write the tables of what has ended, and return them as Markdown.

    Args:
        comparison: The folder.
        plans: What belongs to it.
        existing: Runs that stand beside.
    """
    reference = comparison.reference
    scores = read_scores(comparison, plans)
    for runs in existing:
        scores += runs.scores
    if not scores:
        return ""
    ended = {(score.method, score.mode) for score in scores if score.mode}
    columns = {column: way for column, way in _columns(plans).items() if column in ended}
    lines = [_line(comparison, method, way, plans, scores) for (method, _), way in columns.items()]
    for runs in existing:
        modes = {score.mode or "all" for score in runs.scores}  # a row for tasks of training too
        for mode in sorted(modes, key=lambda mode: (mode != "all", mode)):
            columns[runs.name, mode] = Way(mode, ())
            lines.append(_existing_line(runs, mode, scores, reference))
    text = f"{_caption(comparison, plans, existing)}\n\n{main_table(lines, reference)}"
    for heading, kept in (
        ("Unseen tasks, every method:", [column for column in columns if column[1] == "all"]),
        ("Unseen tasks, every mode:", [column for column in columns if column[0] == reference]),
    ):
        if len(kept) > 1:
            unseen = [score for score in scores if (score.method, score.mode) in kept]
            text += f"\n{heading}\n\n{task_table(unseen, kept)}"
    from mttl.analysis.figures import save_figure
    from mttl.comparison.figure import Dots, comparison_figure  # they need matplotlib

    dots = [
        Dots.of(
            label(*column),
            (
                _scores(scores, column[0], "") if column[1] == "all" else [],
                _scores(scores, *column),
            ),
            (line.seen_difference, line.unseen_difference),
        )
        for column, line in zip(columns, lines, strict=True)
    ]
    save_figure(comparison_figure(dots, [reference] * 2), comparison.out / "comparison")
    write_text(comparison.out / "table.md", text)
    write_text(comparison.out / "table.csv", to_csv(lines))
    write_text(comparison.out / "scores.csv", to_csv(scores))
    return text


def _line(
    comparison: Comparison, method: str, way: Way, plans: list[Plan], scores: list[Score]
) -> Line:
    """Return one row of the main table."""
    mode = way.name
    items = [item for item in plans if item.name == method]
    training = [cost for item in items if (cost := comparison.cost(item, "train")).ended]
    adapted = [item for item in items if comparison.cost(item, f"adapt-{mode}").ended]
    stages = comparison.stages_of(way)
    adapting = [comparison.cost(item, stage) for item in adapted for stage in stages]
    # A mode changes nothing about the tasks of training.
    seen = _scores(scores, method, "") if mode == "all" else []
    unseen = _scores(scores, method, mode)
    reference = _scores(scores, comparison.reference, "all")
    return Line(
        label(method, mode),
        trained=n_trained_in([comparison.run_folder(adapted[0])], mode),
        n_seeds=len(by_seed(unseen)),
        seen=mean_score(seen),
        unseen=mean_score(unseen),
        seen_difference=paired_difference(seen, _scores(scores, comparison.reference, "")),
        unseen_difference=paired_difference(unseen, reference),
        training_minutes=_mean(cost.cpu_minutes for cost in training if mode == "all"),
        adaptation_minutes=sum(cost.cpu_minutes for cost in adapting) / len(adapted),
        peak_mib=max(cost.peak_mib for cost in training + adapting),
        rates=_rates(comparison, adapted, way),
        **_loads(comparison, items if mode == "all" else []),
    )


def _existing_line(runs: ExistingRuns, mode: str, scores: list[Score], reference: str) -> Line:
    """Return a row of the main table of runs whose costs are not known."""
    seen = _scores(scores, runs.name, "") if mode == "all" else []
    unseen = _scores(scores, runs.name, mode)
    compared = _scores(scores, reference, "all")
    if not compared and runs.name != reference:
        compared = _scores(scores, reference, mode)
    return Line(
        label(runs.name, mode),
        trained=n_trained_in(runs.folders, mode),
        n_seeds=len(by_seed(unseen or seen)),
        seen=mean_score(seen),
        unseen=mean_score(unseen),
        seen_difference=paired_difference(seen, _scores(scores, reference, "")),
        unseen_difference=paired_difference(unseen, compared),
        training_minutes=math.nan,
        adaptation_minutes=math.nan,
        peak_mib=math.nan,
    )


def _rates(comparison: Comparison, items: list[Plan], way: Way) -> str:
    """Return the rates of skills and router that were found, with how often."""
    found = Counter(tuple(comparison.rates(item, way)) for item in items)
    texts = [
        " / ".join(f"{float(rate.partition('=')[2]):g}" for rate in rates) + f" ({count})"
        for rates, count in found.most_common()
        if rates
    ]
    return ", ".join(texts)


def _loads(comparison: Comparison, items: list[Plan]) -> dict[str, float]:
    """Return how even the loads of experts are on test rows, and which share was dropped."""
    from mttl.analysis.tokens.token_record import has_token_record, read_token_record

    runs = [comparison.run_folder(item) for item in items if comparison.cost(item, "train").ended]
    records = [read_token_record(run) for run in runs if has_token_record(run)]
    return {
        "load_entropy": _mean(float(record.evenness().mean()) for record in records),
        "dropped": 100 * _mean(float(record.dropped.mean()) for record in records),
    }


def n_trained_in(runs: Sequence[Path], mode: str) -> int:
    """Return how many parameters of skills and router a training, or a way to adapt, trains."""
    if mode == "all":
        return n_trained(runs[0])
    places = (run / f"adapt-{mode}" for run in runs)
    return next(x.n_trained for place in places for x in Results(place).finished.values())


def budget(comparison: Comparison, plans: list[Plan]) -> str:
    """Return what every training and adaptation had, and how much of it has ended."""
    seeds = sorted({item.seed for item in plans})
    ended = sum(comparison.has_ended(item) for item in plans)
    overrides = f" `-k {' '.join(comparison.overrides)}`" if comparison.overrides else ""
    text = (
        f"`{comparison.config}`{overrides}: {comparison.steps} steps of training, "
        f"{comparison.adapt_steps} of each adaptation, seeds {', '.join(map(str, seeds))}"
    )
    if comparison.samples:
        text += f", few-shot samples {comparison.samples}"
    if comparison.examples is not None:
        text += f", {comparison.examples} rows of each unseen task"
    text += ". "
    if ended < len(plans):
        text += f"{ended} of {len(plans)} runs have ended. "
    if comparison.n_folds is not None:
        folds = sorted({item.fold for item in plans})
        some = len(folds) < comparison.n_folds
        here = f" (here {', '.join(map(str, folds))})" if some else ""
        text += (
            f"Every task is unseen once, in {comparison.n_folds} folds{here}: each trains on the "
            "tasks of the others. "
        )
    return text


def _caption(comparison: Comparison, plans: list[Plan], existing: Sequence[ExistingRuns]) -> str:
    """Return the budget and what the columns mean."""
    known = [comparison.run_folder(item) for item in plans if item.name == comparison.reference]
    known += [runs.folders[0] for runs in existing if runs.name == comparison.reference]
    first = next((run for run in known if (run / "config.yaml").is_file()), None)
    others = [runs for runs in existing if runs.name != comparison.reference]
    beside = other_settings(first, others) if first is not None else ""
    return (
        (budget(comparison, plans) if plans else "")
        + "Mean test scores over tasks in per cent; in brackets the 95 % "
        "interval of the paired difference, by a hierarchical bootstrap over tasks, seeds and "
        "few-shot samples. Trained parameters are those of skills and router, or what a mode "
        "trains; minutes are processor time per run; memory is the peak of a process."
        + _few_seeds({*(item.seed for item in plans), *(s for r in existing for s in r.seeds)})
        + (RUNS_CAPTION if existing else "")
        + (RATES_CAPTION if comparison.search_rates else "")
        + (TOKEN_CAPTION if any(item.name.startswith("token") for item in plans) else "")
        + (f"\n\n{beside}" if beside else "")
    )


def _few_seeds(seeds: set[int]) -> str:
    """Return what intervals of one or two seeds leave out."""
    if len(seeds) > 2:
        return ""
    return (
        " With one seed they say nothing of other trainings."
        if len(seeds) == 1
        else " With two seeds they are too narrow for what trainings differ by: take three or more."
    )


def n_trained(run: Path) -> int:
    """Return the number of parameters of a run's skills and learned router, from file headers."""
    from mttl.checkpoints.model_tensors import TOKENS
    from mttl.checkpoints.saved_inventory import count_saved  # they bring PyTorch

    skills = run / "skills"
    meta = read_json(skills / "meta.json", MttlError, dict)
    kind = meta["settings"]["router"]["kind"]
    # What routes tokens learns, whatever routes tasks.
    learned = TOKENS if kind in FIXED_ROUTERS else ""
    routers = count_saved(skills / "router.safetensors", learned)
    return count_saved(skills / "skills.safetensors") + routers


def _columns(plans: list[Plan]) -> dict[tuple[str, str], Way]:
    """Return methods, then the further ways to adapt them."""
    columns = {(item.name, way.name): way for item in plans for way in item.ways}
    return dict(sorted(columns.items(), key=lambda item: item[0][1] != "all"))


def _scores(scores: list[Score], method: str, mode: str) -> list[Score]:
    """Return the scores of a way to adapt; of the tasks of training where it is empty."""
    return [score for score in scores if (score.method, score.mode) == (method, mode)]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.fmean(known) if known else math.nan

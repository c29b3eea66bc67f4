"""Plant a bad behaviour, remove it from the weights in several ways, and tabulate what it costs.

python scripts/forgetting.py --out runs/forgetting
python scripts/forgetting.py --seeds 13 --steps 50 --expert-steps 10 --out runs/try

A small model learns tasks of the gym; in some of them, a share of its training rows teach it to
copy the input instead of transforming it. From this base an expert is tuned on the true rows of
these tasks, and an anti-expert on the planted ones. Then the behaviour is removed by arithmetic on
the three models' weights, with a factor λ that is swept on the development rows; the test rows are
answered with the best one. A seed that has ended is read, not repeated. OUT gets table.md,
points.jsonl and the figure tradeoff.
"""

import argparse
import copy
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mttl.command import READ, WORK, WRITTEN, exit_with, make_console, make_parser
from mttl.config.load import dump_config, load_config
from mttl.errors import ConfigError
from mttl.files import locked, write_text
from mttl.libraries import check_libraries
from mttl.reading import MOST_YAML, read_json, read_text

if TYPE_CHECKING:  # they bring PyTorch
    import torch
    from removal.planted import Row, Score
    from removal.report import Point
    from transformers import PreTrainedModel


PLANTED = ("verb_gerund", "verb_past", "verb_third")
OTHERS = ("noun_plural", "adj_ness", "adj_adverb")


@dataclass(frozen=True)
class Plan:
    """What every seed does; a folder holds seeds of one plan.

    Args:
        config: Names the gym and the model.
        planted: Tasks in which copying is taught.
        others: The other tasks.
        share: Of the rows of the planted tasks.
        steps: Of training the base.
        expert_steps: Of tuning expert and anti-expert.
        lr: Learning rate of the base.
        expert_lr: Of the others.
        batch_size: Rows per step.
        fisher_rows: Rows per estimate of Fisher information.
    """

    config: str
    planted: tuple[str, ...]
    others: tuple[str, ...]
    share: float
    steps: int
    expert_steps: int
    lr: float
    expert_lr: float
    batch_size: int
    fisher_rows: int


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that are missing, and print and write the table."""
    options = parse(arguments)
    check_libraries("matplotlib")
    from removal.report import figure, table

    from mttl.analysis.figures import save_figure

    out, plan = Path(options.out), _plan(options)
    points: "list[Point]" = []
    refusal = ConfigError(f"another run is at work in '{out}': choose another --out")
    with locked(out / ".lock", refusal):
        _keep(plan, out)
        for seed in dict.fromkeys(options.seeds):
            points += run_or_read(plan, seed, out / f"seed{seed}.json")
    text = table(points)
    save_figure(figure(points), out / "tradeoff")
    write_text(out / "points.jsonl", "".join(f"{json.dumps(asdict(point))}\n" for point in points))
    write_text(out / "table.md", text)
    console = make_console()
    console.print(text, markup=False, soft_wrap=True)
    console.print(f"Table and figure are in {out}", markup=False)
    return 0


def run_or_read(plan: Plan, seed: int, path: Path) -> "list[Point]":
    """Return the points of one seed; they are written down when it ends."""
    from removal.planted import Score
    from removal.report import Point

    if not path.is_file():
        status = make_console(stderr=True)
        with Progress(
            TextColumn(f"seed {seed}: {{task.description}}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=status,
            transient=True,
            disable=not status.is_terminal,
        ) as progress:
            bar = progress.add_task("")

            def stage(name: str, total: int) -> Callable[[], object]:
                progress.reset(bar, total=total, description=name)
                return lambda: progress.advance(bar)

            points = run_seed(plan, seed, stage)
        write_text(path, json.dumps([asdict(point) for point in points], indent=1) + "\n")
    found = read_json(path, ConfigError, list)
    try:
        return [Point(**{**point, "score": Score(**point["score"])}) for point in found]
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"'{path}' is damaged ({error}). Delete it: its seed runs again"
        ) from error


def run_seed(
    plan: Plan, seed: int, stage: Callable[[str, int], Callable[[], object]]
) -> "list[Point]":
    """Train the three models of a seed, remove the behaviour, and score."""
    import torch
    from removal.methods import METHODS, Trained
    from removal.planted import plant, read_rows, score
    from removal.report import Point
    from removal.tuning import Tuner

    from mttl.build.build_backbone import build_backbone, build_tokenizer
    from mttl.data.chosen_tasks import open_gym

    config = load_config(plan.config, [])
    gym, tasks = open_gym(config.data), (*plan.planted, *plan.others)
    rows = plant(read_rows(gym, tasks, "train"), plan.planted, plan.share, seed)
    scored = {split: read_rows(gym, tasks, split) for split in ("dev", "test")}
    tuner = Tuner(build_tokenizer(config.backbone), plan.batch_size, seed)
    torch.manual_seed(seed)
    base = build_backbone(config.backbone).requires_grad_(True)
    base.set_attn_implementation("eager")  # gradients of several rows at once need it
    on_step = stage("base", plan.steps)
    tuner.train(base, rows, n_steps=plan.steps, lr=plan.lr, on_step=on_step)
    about = [row for row in rows if row.task in plan.planted]
    own = {
        "base": rows,
        "expert": [row for row in about if not row.planted],
        "anti-expert": [row for row in about if row.planted],
    }
    models: "dict[str, PreTrainedModel]" = {"base": base}
    for name in ("expert", "anti-expert"):
        models[name] = copy.deepcopy(base)
        on_step = stage(name, plan.expert_steps)
        tuner.train(
            *(models[name], own[name]),
            n_steps=plan.expert_steps,
            lr=plan.expert_lr,
            on_step=on_step,
        )
    fishers = {}
    for name, model in models.items():
        advance = stage(f"Fisher information of the {name}", plan.fisher_rows)
        drawn = _draw(own[name], plan.fisher_rows, seed)
        fishers[name] = tuner.fisher(
            model,
            drawn,
            at_once=16,
            on_rows=lambda n, advance=advance: [advance() for _ in range(n)],
        )
    trained = Trained(*(dict(model.state_dict()) for model in models.values()), *fishers.values())

    def scores(model: "PreTrainedModel", split: str) -> "Score":
        return score(scored[split], tuner.answers(model, scored[split]), plan.planted)

    points = [
        Point(seed, name, None, split, scores(model, split))
        for name, model in models.items()
        for split in scored
    ]
    merged = copy.deepcopy(base)
    for name, (method, weights) in METHODS.items():
        advance = stage(name, len(weights) + 1)

        def put(weight: float, method: "Callable[..., torch.Tensor]" = method) -> "PreTrainedModel":
            with torch.no_grad():
                for tensor, value in merged.named_parameters():
                    value.copy_(method(trained, weight, tensor))
            return merged

        swept = []
        for weight in weights:
            swept.append(Point(seed, name, weight, "dev", scores(put(weight), "dev")))
            advance()
        best = max(swept, key=lambda point: point.score.mean).weight
        assert best is not None
        points += [*swept, Point(seed, name, best, "test", scores(put(best), "test"))]
    return points


def _draw(rows: "list[Row]", count: int, seed: int) -> "list[Row]":
    return random.Random(seed).sample(rows, min(count, len(rows)))


def _keep(plan: Plan, out: Path) -> None:
    """Write the plan and its settings down, or refuse to mix seeds of different ones."""
    path, settings = out / "plan.json", out / "config.yaml"
    ours = json.loads(json.dumps(asdict(plan)))
    before = read_json(path, ConfigError, dict) if path.exists() else ours
    changed = [f"{key} ({before.get(key)})" for key in ours if before.get(key) != ours[key]]
    now = dump_config(load_config(plan.config, []))
    if settings.exists():
        # Imported late: it brings PyTorch.
        from mttl.training.run_folder import PLACE, changed_settings

        noted = read_text(settings, ConfigError, MOST_YAML)
        changed += changed_settings(noted, now, (*PLACE, "data.cache_dir"))
    if changed:
        raise ConfigError(
            f"'{path.parent}' holds seeds of other settings: {', '.join(changed)}. Use those, or "
            "another --out"
        )
    write_text(path, json.dumps(ours, indent=1) + "\n")
    write_text(settings, now)


def _plan(options: argparse.Namespace) -> Plan:
    for name in ("steps", "expert_steps", "batch_size", "fisher_rows"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("lr", "expert_lr"):
        if not 0 < (rate := getattr(options, name)) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} ({rate}) must be above 0, and finite")
    if not 0 < options.share < 1:
        raise ConfigError(f"--share ({options.share}) must lie between 0 and 1")
    common = sorted(set(options.planted) & set(options.others))
    if common:
        raise ConfigError(f"--planted and --others share {', '.join(common)}; they must differ")
    config = load_config(options.config, [])
    if config.backbone.kind != "random" or config.backbone.model_type != "t5":
        raise ConfigError(
            f"the backbone of '{options.config}' must be a T5 with random weights, as in "
            "crossfit.yaml+backbone/tiny_t5.yaml"
        )
    from mttl.data.chosen_tasks import open_gym  # it brings numpy

    gym = open_gym(config.data)
    for task in (*options.planted, *options.others):
        gym.file(task, "test", 100)  # a mistake should not cost the training before it
    n_rows = sum(len(list(gym.rows(task, "train", 100))) for task in options.planted)
    if not 0 < round(options.share * n_rows) < n_rows:
        raise ConfigError(
            f"--share ({options.share}): of the {n_rows} training rows of the planted tasks it "
            f"plants {round(options.share * n_rows)}; at least one has to be planted, and one not"
        )
    values = {name: getattr(options, name) for name in Plan.__dataclass_fields__}
    return Plan(**{**values, "planted": tuple(options.planted), "others": tuple(options.others)})


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.group(READ).add_argument
    add(
        *("-c", "--config"),
        default="crossfit.yaml+backbone/tiny_t5.yaml",
        help="names gym and model (%(default)s)",
    )
    add("--planted", nargs="+", default=PLANTED, metavar="TASK", help="tasks with the behaviour")
    add("--others", nargs="+", default=OTHERS, metavar="TASK", help="tasks without it")
    add = parser.group(WORK).add_argument
    add("--share", type=float, default=0.5, help="of the rows that are planted (%(default)s)")
    add("--steps", type=int, default=500, help="steps of training the base (%(default)s)")
    add("--expert-steps", type=int, default=100, help="steps of tuning from it (%(default)s)")
    add("--lr", type=float, default=2e-3, help="of the base (%(default)s)")
    add("--expert-lr", type=float, default=5e-4, help="of the experts (%(default)s)")
    add("--batch-size", type=int, default=64, help="(%(default)s)")
    add("--fisher-rows", type=int, default=256, help="rows per Fisher estimate (%(default)s)")
    add("--seeds", type=int, nargs="+", default=[13, 14, 15], metavar="SEED", help="(13 14 15)")
    out = parser.group(WRITTEN).add_argument
    out("--out", default="runs/forgetting", metavar="DIR", help="(%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)

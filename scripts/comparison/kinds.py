"""Kinds of skills side by side: each as a method, at equal steps or at equal parameters."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from comparison.folder import Comparison
from comparison.intervals import half_width
from comparison.methods import EVERY, MODE_WAYS, Method, Plan
from comparison.tables import Mean, Score, by_seed, markdown, mean_cell
from mttl.config.load import join_files, load_config
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym, partition_of
from mttl.errors import MttlError, nearest
from mttl.gym.partition import select_tasks
from mttl.reading import read_json
from mttl.shipped_files import shipped_folder

MOST_SKILLS = 64  # where a kind has no other size
LARGEST = 2**16  # of any other size
COSTS = (
    *("kind", "trained", "trained, %", "changed, %", "rank", "KiB on disk"),
    *("step", "memory", "speed", "mergeable"),
)
MEANING = (
    "One row per kind of skill, on the same frozen backbone. *trained*: parameters of skills and "
    "router; *changed*: entries of the backbone that differ once the first task is folded into it, "
    "both in per cent of the backbone; *rank*: of such a change of a weight, mean over layers, and "
    "the rank that it could have. Kinds without these two cannot be folded. *step*, *memory*: of a "
    "training step, over one of the frozen backbone with gradients down to the embeddings; "
    "*speed*: of greedy generation, over the bare backbone. Scores: mean over tasks in per cent, "
    "with Student's 95 % interval over seeds. A kind is adapted at the configured rate times what "
    "its file makes of the rate of training.\n"
)


def kind_names() -> list[str]:
    """Return the kinds of skills that ship with a configuration fragment."""
    return sorted(path.stem for path in (shipped_folder() / "configs" / "skills").glob("*.yaml"))


def kind_methods(
    names: Sequence[str],
    config: str,
    overrides: Sequence[str],
    *,
    n_parameters: int | None = None,
    modes: Sequence[str] = (),
) -> dict[str, Method]:
    """Return a method per kind of skill.

    Args:
        names: Kinds, by the names of their fragments; ``all`` stands for every one.
        config: Configuration files below the fragments.
        overrides: Settings of all runs.
        n_parameters: What the skills of each are brought to, as near as its size can come.
        modes: Further ways to adapt them.

    Raises:
        MttlError: If there is no such kind, or the backbone would be trained.
    """
    if not names:
        return {}
    known = kind_names()
    chosen = known if EVERY in names else list(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            hint = nearest(name, known) or f" There are: {', '.join(known)}."
            raise MttlError(f"--skills {name}: no file 'skills/{name}.yaml' is shipped.{hint}")
    common = load_config(config, list(overrides))
    if common.backbone.train:
        raise MttlError(
            f"--skills compares kinds on a frozen backbone, and '{config}' trains it: set "
            "-k backbone.train=false"
        )
    ways = (MODE_WAYS[0], *(way for way in MODE_WAYS[1:] if way.name in modes))
    found = {}
    for name in chosen:
        files = join_files(config, f"skills/{name}.yaml")
        own = load_config(files, list(overrides))
        # Adaptation of a kind bears the rate that its training does, unless its file says another.
        rate = 1.0 if own.adapt.lr != common.adapt.lr else own.optim.lr / common.optim.lr
        size = () if n_parameters is None else (sized(files, overrides, own, n_parameters),)
        found[name] = Method(
            *(f"skills/{name}.yaml", size),
            ways=ways,
            adapts_by_fragment=True,
            rate=rate,
            measured=True,
        )
    return found


def sized(files: str, overrides: Sequence[str], own: Config, n_parameters: int) -> str:
    """Return the setting that brings the skills of a configuration nearest to a size."""
    from mttl.build.factor_table import with_factors  # it brings PyTorch

    name = getattr(own.skills, "sized_by", "n_skills")
    gym = open_gym(own.data)
    tasks = select_tasks(partition_of(own.data, gym).train, gym, own.data.skip_missing)

    def count(value: object) -> int:
        config = load_config(files, [*overrides, f"skills.{name}={value}"])
        return count_skills(with_factors(config, gym, tasks), tasks)

    start = getattr(own.skills, name)
    if isinstance(start, float):  # a share that is left alone
        whole = count(start) / (1 - start)
        return f"skills.{name}={max(0.0, 1 - n_parameters / whole):.6f}"
    most = MOST_SKILLS if name == "n_skills" else LARGEST
    value = nearest_size(count, n_parameters, most)
    return f"skills.{name}={value}"


def nearest_size(count: Callable[[int], int], wanted: int, most: int) -> int:
    """Return the whole number from 1 whose count, which grows with it, is nearest to a wanted."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if count(middle) < wanted else (low, middle)
    return min((value for value in (low - 1, low) if value), key=lambda x: abs(count(x) - wanted))


def count_skills(config: Config, tasks: Sequence[str]) -> int:
    """Return the number of parameters of the skills of a configuration; no weight is loaded."""
    from mttl.planning.fake_model import fake_model  # it brings PyTorch

    layers = fake_model(config, tasks).skilled_layers().values()
    parameters = {value for layer in layers for value in layer.inventory.parameters()}
    return sum(value.numel() for value in parameters)  # layers may share some


@dataclass(frozen=True)
class KindLine:
    """One row of the table of kinds; what is not known is NaN.

    Attributes:
        kind: Name of the kind's fragment.
        settings: What brings it to the common number of parameters; may be empty.
        n_seeds: How many seeds have ended.
        trained: Parameters of skills and router.
        trained_share: Of the backbone's, in per cent.
        changed: Entries of the backbone that differ once a task is folded, in per cent.
        rank: Of the change of a weight, mean over layers.
        full_rank: The rank that it could have.
        n_bytes: Size of ``skills/`` on disk.
        step: Time of a training step over that of the frozen backbone.
        memory: Its peak of memory, likewise.
        speed: Of generation, over that of the bare backbone.
        mergeable: Whether a task can be folded into plain weights.
        seen: Mean over the training tasks.
        unseen: Mean over the unseen tasks, after adaptation.
    """

    kind: str
    settings: str
    n_seeds: int
    trained: int
    trained_share: float
    changed: float
    rank: float
    full_rank: float
    n_bytes: int
    step: float
    memory: float
    speed: float
    mergeable: bool
    seen: Mean
    unseen: Mean


def kind_lines(
    comparison: Comparison, plans: Sequence[Plan], scores: Sequence[Score]
) -> list[KindLine]:
    """Return a row per kind of which something has ended, the first seed's measures with it."""
    lines = []
    for item in plans:
        path = comparison.measures(item)
        if item.measured and path.is_file():
            own = [score for score in scores if score.method == item.name]
            lines.append(_line(comparison, item, _measures(path), own))
    return lines


def kind_table(lines: Sequence[KindLine]) -> str:
    """Return the table of kinds as Markdown, with what its columns mean."""
    sized_ones = [line for line in lines if line.settings]
    sizes = ", ".join(f"`{line.kind}` {line.settings}" for line in sized_ones)
    told = f"\nBrought to equal size by: {sizes}.\n" if sizes else ""
    rows = [(*_costs(line), mean_cell(line.seen), mean_cell(line.unseen)) for line in lines]
    return f"{MEANING}{told}\n{markdown((*COSTS, 'seen', 'unseen'), rows)}"


def cost_table(lines: Sequence[KindLine]) -> str:
    """Return the columns of sizes and costs alone, with what made the kinds as large."""
    if not any(line.settings for line in lines):
        return markdown(COSTS, map(_costs, lines))
    kind, *costs = COSTS
    rows = []
    for line in lines:
        name, *cells = _costs(line)
        rows.append((name, f"`{line.settings}`" if line.settings else "", *cells))
    return markdown((kind, "made as large by", *costs), rows)


def _costs(line: KindLine) -> tuple[str, ...]:
    return (
        f"`{line.kind}`",
        f"{line.trained:,}",
        f"{line.trained_share:.3g}",
        _cell(line.changed, ".3g"),
        f"{line.rank:.1f} of {line.full_rank:g}" if not math.isnan(line.rank) else "",
        f"{line.n_bytes / 1024:,.0f}",
        _cell(line.step, ".2f"),
        _cell(line.memory, ".2f"),
        _cell(line.speed, ".2f"),
        "yes" if line.mergeable else "no",
    )


def read_kinds(path: Path) -> list[KindLine]:
    """Read the rows that `kinds_json` wrote.

    Raises:
        MttlError: If the file is damaged.
    """
    lines = []
    for row in read_json(path, MttlError, list):
        try:
            whole = _numbers(row)
            whole |= {side: Mean(**_numbers(row[side])) for side in ("seen", "unseen")}
            lines.append(KindLine(**whole))
        except (AttributeError, KeyError, TypeError) as error:
            raise MttlError(f"'{path}' is damaged ({error})") from error
    return lines


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in row.items()}


def kinds_json(lines: Sequence[KindLine]) -> str:
    """Return the rows as JSON; what is not known is null."""
    return json.dumps([known(asdict(line)) for line in lines], indent=1) + "\n"


def seed_mean(scores: Sequence[Score]) -> Mean:
    """Return the mean of the seeds' means over tasks, with Student's 95 % interval."""
    values = list(by_seed(scores).values())
    if not values:
        return Mean(math.nan, math.nan, math.nan)
    mean, half = statistics.fmean(values), half_width(values)
    return Mean(mean, mean - half, mean + half)


def _line(
    comparison: Comparison, item: Plan, found: Mapping[str, Mapping[str, Any]], own: list[Score]
) -> KindLine:
    step, answers = found["training"], found["answering"]
    n_backbone = answers["backbone"]
    skills = comparison.run_folder(item) / "skills"
    method = comparison.methods[item.name]
    nan = math.nan
    return KindLine(
        kind=item.name,
        settings=" ".join(method.settings),
        trained=int(answers["trained"]),
        trained_share=100 * answers["trained"] / n_backbone,
        changed=100 * answers.get("changed", nan) / n_backbone,
        rank=answers.get("rank", nan),
        full_rank=answers.get("full", nan),
        n_bytes=sum(path.stat().st_size for path in skills.glob("*.safetensors")),
        step=step["ratio"],
        memory=step["peak_mib"] / found["floor"]["peak_mib"],
        speed=answers["ratio"],
        mergeable=bool(answers["mergeable"]),
        **_results(own),
    )


def rescored(line: KindLine, scores: Sequence[Score]) -> KindLine:
    """Return a row with the results of other scores, if there are any of its kind."""
    own = [score for score in scores if score.method == line.kind]
    return replace(line, **_results(own)) if own else line


def _results(own: Sequence[Score]) -> dict[str, Any]:
    """Return what a kind's scores come to, adapted in its own way; further ways are rows apart."""
    seen = [score for score in own if score.side == "seen"]
    unseen = [score for score in own if score.side == "unseen" and score.mode == "all"]
    seeds = len(by_seed(seen or unseen))
    return {"n_seeds": seeds, "seen": seed_mean(seen), "unseen": seed_mean(unseen)}


def _measures(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read what `scripts/benchmarks/skill_cost.py` wrote."""
    rows = {row["name"]: row for row in read_json(path, MttlError, dict)["rows"]}
    names = {
        "floor": "without skills, training",
        "training": "with skills, training",
        "answering": "with skills, answering",
    }
    try:
        return {name: rows[row] for name, row in names.items()}
    except KeyError as error:
        raise MttlError(f"'{path}' is damaged (no {error}). Delete it") from error


def _cell(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def known(value: Any) -> Any:
    """Return a value with null in the place of what is not known."""
    if isinstance(value, dict):
        return {name: known(own) for name, own in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value

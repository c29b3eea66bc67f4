"""What a comparison keeps, read from its folder: scores, and the settings that all runs shared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comparison.tables import Score, check_rows
from mttl.errors import MttlError
from mttl.reading import MOST_YAML, read_table, read_text, to_number
from mttl.training.run_folder import PLACE, changed_settings, differing_settings

CONFIG, SETTINGS, SCORES = "config.yaml", "comparison.yaml", "scores.csv"
KEPT = (CONFIG, SETTINGS, SCORES)
OWN = "methods"  # the configurations of methods of one's own
COLUMNS = ("method", "mode", "seed", "side", "task", "sample", "score", "fold")
# Where things lie, and files that are equal wherever they lie.
MAY_DIFFER = (*PLACE, "run.seed", "data.cache_dir")


def join(folders: Sequence[Path]) -> list[Score]:
    """Return the scores of comparisons that were made alike.

    Args:
        folders: Theirs.

    Raises:
        MttlError: If one holds no comparison, two differ in a setting, in a score of one run,
            or in the rows of a task.
    """
    found: dict[tuple[object, ...], tuple[Score, Path]] = {}
    for folder in folders:
        missing = [name for name in KEPT if not (folder / name).is_file()]
        if missing:
            raise MttlError(
                f"'{folder}' is not the folder of a comparison: it has no {', '.join(missing)}. "
                "Name what --out named"
            )
        check_alike(folders[0], folder)
    own_methods_in(folders)
    for folder in folders:
        for score in read_scores(folder / SCORES):
            key = (score.method, score.mode, score.seed, score.task, score.sample, score.fold)
            first, place = found.setdefault(key, (score, folder))
            if f"{first.score:.4f}" != f"{score.score:.4f}":
                raise MttlError(
                    f"'{place}' and '{folder}' have different scores of {score.method}, seed "
                    f"{score.seed}, task '{score.task}': {first.score} and {score.score}. Leave "
                    "one of them out"
                )
    scores = [score for score, _ in found.values()]
    check_rows(scores)
    return scores


def check_alike(one: Path, other: Path) -> None:
    """Refuse two comparisons whose scores mean different things.

    Raises:
        MttlError: If a setting that all runs of one shared is another in the other.
    """
    if different := differences(one, other):
        raise MttlError(
            f"'{one}' and '{other}' were not made alike: {', '.join(different)}. Join comparisons "
            "of one configuration and one budget"
        )


def differences(one: Path, other: Path) -> list[str]:
    """Return the settings that all runs of a comparison shared, and those of another did not."""
    texts = [read_text(folder / SETTINGS, MttlError, MOST_YAML) for folder in (one, other)]
    different = changed_settings(*texts, ignore=("overrides",))
    return different + differing_settings(one, other, ignore=MAY_DIFFER)


def beside(folder: Path, scores: Sequence[Score], named: str) -> tuple[list[Score], str]:
    """Return the scores of a comparison that was made otherwise, under other names.

    Args:
        folder: The comparison that they are set beside.
        scores: Its scores.
        named: ``NAME=FOLDER``; the name is put after that of every method.

    Returns:
        The scores, and a sentence that tells what was otherwise.

    Raises:
        MttlError: If the text has another form, or the comparison is of other tasks.
    """
    name, _, other = named.partition("=")
    if not name or not other:
        raise MttlError(f"--beside '{named}' must have the form NAME=FOLDER")
    others = [replace(x, method=f"{x.method}, {name}") for x in join([Path(other)])]
    if not {x.task for x in others} & {x.task for x in scores}:
        raise MttlError(
            f"--beside {name}: '{other}' is a comparison of other tasks; name one of these"
        )
    told = ", ".join(differences(folder, Path(other))) or "nothing"
    return others, f"Methods with `, {name}` differ from the others in {told}."


def own_methods_in(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the configurations of methods of one's own, by their names.

    Raises:
        MttlError: If one name means two things.
    """
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted((folder / OWN).glob("*.yaml"))):
        first = found.setdefault(path.stem, path)
        texts = [read_text(file, MttlError, MOST_YAML) for file in (first, path)]
        if different := changed_settings(*texts, ignore=MAY_DIFFER):
            raise MttlError(
                f"'{first}' and '{path}' are two methods: {', '.join(different)}. Give each a name "
                "of its own"
            )
    return found


def categories_of(folder: Path) -> dict[str, str]:
    """Return the category of every task of the gym that a comparison was made on."""
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym

    gym = open_gym(load_config(str(folder / CONFIG), []).data)
    return {task: gym.category(task) for task in gym.tasks()}


def read_scores(path: Path) -> list[Score]:
    """Read the scores that a comparison has written.

    Raises:
        MttlError: If the file is no such table.
    """

    def whole(text: str) -> int:
        value = to_number(text, f"'{path}': a number", MttlError)
        if not value.is_integer():
            raise MttlError(f"'{path}': {text} must be a whole number. Copy the file again")
        return int(value)

    return [
        Score(
            method=row["method"],
            mode=row["mode"],
            seed=whole(row["seed"]),
            side=row["side"],
            task=row["task"],
            sample=whole(row["sample"]),
            score=to_number(row["score"], f"'{path}': a score", MttlError),
            fold=whole(row["fold"]),
            rows=row.get("rows", ""),  # earlier versions did not keep it
        )
        for row in read_table(path, MttlError, COLUMNS)
    ]

"""Film episodes of evaluation as the trained policies of a run play them.

python scripts/film_policy.py runs/babyai --level GoToObj --out goto.gif
python scripts/film_policy.py runs/babyai --level GoToObj --episode 3 --episode 8 --out goto.gif

Episode N is the one that evaluation after training counts as its N-th, from 0. Several episodes are
filmed to goto-3.gif and goto-8.gif.
"""

import argparse
from pathlib import Path

from envs.episodes import episode_seed
from envs.errors import LevelError
from envs.film import SUFFIXES, film
from envs.levels import find_level
from mttl.babyai.build_policy import load_policies
from mttl.babyai.evaluate import play_episode
from mttl.checkpoint import read_inventory
from mttl.command import exit_with, make_console, make_parser, natural
from mttl.config.babyai_schema import BabyAIConfig, Evaluation
from mttl.config.load import load_any_config
from mttl.errors import MttlError


def main(arguments: list[str] | None = None) -> int:
    """Play and film all episodes asked for."""
    options = parse(arguments)
    if options.out.suffix not in SUFFIXES:
        raise MttlError(f"'{options.out}' must end in {' or '.join(SUFFIXES)}")
    level = options.level
    model, levels = load_policies(options.run)
    if level not in levels:
        raise MttlError(explain_level(level, options.run, levels))
    policy = model.task_module(levels.index(level))
    seed = evaluation_seed(options.run)
    choose = "sampled" if options.sampled else "greedy"
    console = make_console()
    episodes = list(dict.fromkeys(options.episode or [0]))
    for episode in episodes:
        actions, success = play_episode(policy, level, episode, seed=seed, choose=choose)
        path = options.out
        if len(episodes) > 1:
            path = path.with_stem(f"{path.stem}-{episode}")
        try:
            film(level, episode_seed(seed, level, episode), actions, path)
        except ImportError as error:
            raise MttlError(str(error)) from error
        outcome = "success" if success else "no success"
        console.print(
            f"{level}, episode {episode}: {outcome} in {len(actions)} steps, {path}", soft_wrap=True
        )
    return 0


def explain_level(level: str, run: Path, levels: tuple[str, ...]) -> str:
    """Return why a level cannot be played."""
    try:
        find_level(level)
    except LevelError as error:
        return f"--level: {error}"
    return f"--level: '{run}' has no policy for {level}, only for {', '.join(levels)}"


def evaluation_seed(run: Path) -> int:
    """Return the seed of the run's episodes of evaluation; the usual one for skills alone."""
    path = read_inventory(run).folder.absolute().parent / "config.yaml"
    if not path.is_file():
        return Evaluation().seed
    config = load_any_config([str(path)], own=None)
    evaluation = config.rl.evaluation if isinstance(config, BabyAIConfig) else Evaluation()
    return evaluation.seed


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of the run, or its skills/")
    add("--level", required=True, help="one that the run was trained on")
    add(
        "--episode",
        type=natural,
        action="append",
        metavar="N",
        help="which episode (0); may be repeated",
    )
    add("--sampled", action="store_true", help="draw actions instead of taking the most likely")
    add("--out", type=Path, required=True, help="film to write, .gif or .mp4")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)

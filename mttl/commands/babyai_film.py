"""Film episodes of evaluation as the trained policies of a run play them.

mttl babyai film runs/babyai --level GoToObj --out goto.gif
mttl babyai film runs/babyai --level GoToObj --episode 3 --episode 8 --out goto.gif
mttl babyai film runs/babyai --level GoToObj --level GoToLocal --out levels.gif

Episode N is the one that evaluation after training counts as its N-th, from 0. Several episodes are
filmed to goto-3.gif and goto-8.gif; several levels stand in one film, in a grid. Below the picture
stand mission, step and action, and bars: how much of each skill the policy of the level uses.
"""

import argparse
from pathlib import Path

from mttl.commands.name_checks import check_run_task
from mttl.commands.options import NATURAL, CommandParser, command
from mttl.io.errors import MttlError, raised_as
from mttl.runtime.command import make_console

ENDINGS = (".gif", ".mp4")


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    add = parser.work.add_argument
    help = "one that the run was trained on; may be repeated"
    add("--level", action="append", required=True, help=help)
    help = "which episode (0); may be repeated"
    add("--episode", **NATURAL, action="append", help=help)
    add("--sampled", action="store_true", help="draw actions instead of taking the most likely")
    add = parser.written.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="film to write, .gif or .mp4")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Play and film all episodes asked for."""
    levels = list(dict.fromkeys(options.level))
    episodes = list(dict.fromkeys(options.episode or [0]))
    problem = ""
    if options.out.suffix not in ENDINGS:
        problem = f"'{options.out}' must end in {' or '.join(ENDINGS)}"
    elif len(levels) > 1 and len(episodes) > 1:
        problem = "--episode: a film of several levels is of one episode of each; name one"
    if problem:
        raise MttlError(problem)
    for level in levels:
        check_run_task(level, options.run)
    from envs.film import Episode, film
    from envs.interface import slot_seed
    from mttl.analysis.skill_matching import align_groups, matched
    from mttl.babyai.build_policy import load_policies
    from mttl.babyai.evaluate import play_episode
    from mttl.training.monitors import as_rows

    model, known = load_policies(options.run)
    seed = evaluation_seed(options.run)
    choose = "sampled" if options.sampled else "greedy"
    weights = as_rows(model.router.matrix())
    shares = matched(weights, align_groups(weights)).mean(0).tolist()  # of skills, by level
    for number in episodes:
        path = options.out
        if len(episodes) > 1:
            path = path.with_stem(f"{path.stem}-{number}")
        played = []
        for level in levels:
            task = known.index(level)
            actions, success = play_episode(model, task, level, number, seed=seed, choose=choose)
            begun = slot_seed(seed, level, number, evaluation=True)
            played.append(Episode(level, begun, actions, shares[task], success))
            outcome = f"{'success' if success else 'no success'} in {len(actions)} steps"
            make_console().print(f"{level}, episode {number}: {outcome}, {path}", soft_wrap=True)
        with raised_as(MttlError, "", ImportError):
            film(played, path)


def evaluation_seed(run: Path) -> int:
    """Return the seed of the run's episodes of evaluation; the usual one for skills alone."""
    from mttl.checkpoints.saved_inventory import read_inventory
    from mttl.config.babyai_schema import BabyAIConfig, Evaluation
    from mttl.config.load import load_any_config

    path = read_inventory(run).folder.absolute().parent / "config.yaml"
    config = load_any_config([str(path)], plugins=None) if path.is_file() else None
    evaluation = config.rl.evaluation if isinstance(config, BabyAIConfig) else Evaluation()
    return evaluation.seed

"""Record films of evaluation episodes, played by the trained policies of a run.

mttl babyai film runs/babyai
mttl babyai film runs/babyai --level GoToObj --out goto.gif
mttl babyai film runs/babyai --level GoToObj --episode 3 --episode 8 --out goto.gif
mttl babyai film runs/babyai --level GoToObj --level GoToLocal --out levels.gif

Episodes are numbered from 0 as in the evaluation after training. Several episodes give one film
each (goto-3.gif, goto-8.gif). Without --out, each level has a film in RUN/plots/films, which mttl
explore shows; with --out, several levels are shown in one film as a grid. Each frame has the
mission, step and action, and bars with the skill weights of the level.
"""

import argparse
from itertools import product
from pathlib import Path

from envs.levels import file_name
from mttl.checkpoints.inventory_files import inventory_folder
from mttl.commands.name_checks import check_levels, check_run_task, run_tasks
from mttl.commands.options import NATURAL, CommandParser, command
from mttl.io.errors import MttlError, raised_as
from mttl.runtime.command import make_console

ENDINGS = (".gif", ".mp4")


def _declare(parser: CommandParser) -> None:
    parser.add_source("run")
    add = parser.work.add_argument
    help = "level that the run was trained on (all); may be repeated"
    add("--level", action="append", help=help)
    help = "number of an episode (0); may be repeated"
    add("--episode", **NATURAL, action="append", help=help)
    add("--sampled", action="store_true", help="sample actions instead of taking the most probable")
    help = "film to write, .gif or .mp4; must not exist (RUN/plots/films/LEVEL.gif)"
    parser.written.add_argument("--out", type=Path, metavar="FILE", help=help)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Play and film all requested episodes."""
    levels = list(dict.fromkeys(options.level or run_tasks(options.run)))
    episodes = list(dict.fromkeys(options.episode or [0]))
    folder = inventory_folder(options.run).absolute().parent
    shown = {folder / "plots" / "films" / f"{file_name(one)}.gif": [one] for one in levels}
    shown = {options.out: levels} if options.out else shown
    several = len(episodes) > 1
    films = [
        (path.with_stem(f"{path.stem}-{number}") if several else path, own, number)
        for (path, own), number in product(shown.items(), episodes)
    ]
    problem = ""
    if options.out and options.out.suffix not in ENDINGS:
        problem = f"'{options.out}' must end in {' or '.join(ENDINGS)} (--out)"
    elif options.out and len(levels) > 1 and several:
        problem = "--episode: give one number only, because several levels share one film"
    elif options.out and (there := [path for path, *_ in films if path.exists()]):
        problem = f"--out '{there[0]}' already exists; choose another path or remove it"
    if problem:
        raise MttlError(problem)
    for level in levels:
        check_run_task(level, options.run)
    check_levels(levels, "--level")
    from envs.film import Episode, film
    from envs.interface import slot_seed
    from mttl.analysis.skill_matching import align_groups, matched
    from mttl.babyai.build_policy import load_policies
    from mttl.babyai.evaluate import play_episode
    from mttl.commands.routing_report.read_routing import read_settings
    from mttl.config.babyai_schema import BabyAIConfig, Evaluation
    from mttl.training.monitors import as_rows

    model, known = load_policies(options.run)
    config = read_settings(folder)
    evaluation = config.rl.evaluation if isinstance(config, BabyAIConfig) else Evaluation()
    seed = evaluation.seed
    played_as = {"seed": seed, "max_steps": evaluation.max_steps}
    played_as["choose"] = "sampled" if options.sampled else "greedy"
    weights = as_rows(model.router.matrix())
    shares = matched(weights, align_groups(weights)).mean(0).tolist()  # of skills, by level
    for path, own, number in films:
        played = []
        for level in own:
            task = known.index(level)
            actions, success = play_episode(model, task, level, number, **played_as)
            begun = slot_seed(seed, level, number, evaluation=True)
            played.append(Episode(level, begun, actions, shares[task], success))
            outcome = f"{'success' if success else 'no success'} in {len(actions)} steps"
            make_console().print(f"{level}, episode {number}: {outcome}, {path}", soft_wrap=True)
        with raised_as(MttlError, "", ImportError):
            film(played, path)

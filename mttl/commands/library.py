"""Manage a library of skills: low-rank adapters of one model, stored as PEFT folders with cards.

mttl library add skills 'adapters/*' someone/some-lora --licence mit
mttl library add skills runs/private --rank 8
mttl library list skills
mttl library show skills verb_past
mttl library remove skills 'old_*'
mttl library run skills -c crossfit.yaml+router/private.yaml --out runs/library
mttl library export skills verb_past --out adapters/again
mttl library cluster skills --out clusters.csv

Members are PEFT adapters, tasks or skills of runs, or members of other libraries, local or on the
hub. A command adds all of its sources or none, and lists every problem.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mttl.commands.options import LIST, NATURAL, POSITIVE, CommandParser, command
from mttl.io.errors import CheckpointError, ConfigError, MttlError, grouped
from mttl.io.files import new_folder, write_table
from mttl.library.member_card import check_library
from mttl.runtime.command import make_console, say
from mttl.runtime.text_table import TextTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mttl.library.library_folder import Library, Member
    from mttl.library.member_card import BaseModel


def add(options: argparse.Namespace) -> None:
    """Add members."""
    from mttl.library.library_folder import add_members, library_to_be, member_problems
    from mttl.library.member_sources import Found, base_problems, describe_base

    library = library_to_be(options.library)
    found = Found(options.rank, options.skills, options.backbone)
    found.read(options.sources)
    if (options.rank or options.skills) and not found.runs:
        raise ConfigError("--rank and --skills are for runs, but no source is a run; remove them")
    given = {"licence": options.licence, "data": options.data}
    given = {key: word for key, word in given.items() if word is not None}
    members = []
    for member in found.members:
        name = (options.name or "*").replace("*", member.card.name)
        members.append(replace(member, card=member.card.model_copy(update={"name": name, **given})))
    problems = found.problems
    base = library.base if library else None
    named = [member.card.base["name"] for member in members]
    if options.backbone or (base is None and any(named)):
        try:
            base = describe_base(options.backbone or next(filter(None, named)))
        except MttlError as error:
            problems.append(str(error))
    elif base is None and members:
        problems.append("no adapter names its base model; name it with --backbone")
    if base is not None:
        members, others = base_problems(members, base, trusted=options.backbone is not None)
        problems += others + member_problems(members, base, library.members if library else ())
    if problems or base is None:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise CheckpointError(f"nothing was added to '{options.library}'; problems:\n{listed}")
    check_members(members, base, options)
    after = add_members(options.library, base, members)
    say(
        f"Added {len(members)} members to {options.library}, which now has {len(after.members)} "
        f"(version {after.version})"
    )


def check_members(
    members: "Sequence[Member]", base: "BaseModel", options: argparse.Namespace
) -> None:
    """Check in a temporary library that members give the same answers as their sources."""
    from mttl.assembly.model import load_run
    from mttl.checkpoints.inventory_files import find_inventory
    from mttl.library.library_folder import add_members
    from mttl.merging.check_written import (
        changed_answer,
        check_written,
        compare_answers,
        task_answers,
    )

    if options.no_probe or (network := base_network(base, options)) is None:
        return
    due = {one.card.source: changed_answer(network, one.changes) for one in members}
    runs = [source for source in map(Path, options.sources) if find_inventory(source)]
    for source in () if options.rank or options.skills else runs:
        built = load_run(source, backbone=options.backbone)
        for task, answer in task_answers(built.model, built.tasks).items():
            due[f"'{source}', task '{task}'"] = answer
    with TemporaryDirectory() as folder:
        trial = add_members(Path(folder), base, members)
        for member in members:
            source, name = member.card.source, member.card.name
            found = {source: changed_answer(network, trial.member(name).changes)}
            compare_answers(found, {source: due[source]}, network)
            if ((place := Path(source.strip("'"))) / "adapter_config.json").is_file():
                check_written(place, network, found)


def base_network(base: "BaseModel", options: argparse.Namespace) -> "PreTrainedModel | None":
    """Return the library's base model; prints a warning and returns None if it is missing."""
    from mttl.assembly.build_backbone import build_backbone
    from mttl.config.backbone_schema import Pretrained

    try:
        return build_backbone(Pretrained(kind="pretrained", name=base.name), empty=options.no_probe)
    except ConfigError as error:
        say(f"Answers are not checked: {error}", stderr=True)
        return None


def show_all(library: "Library", options: argparse.Namespace) -> None:
    """Print a table of the members."""
    table = TextTable(f"{library.folder}, version {library.version}, over {library.base.name}")
    table.words("member", "task", "data", "licence")
    table.numbers("rank", "layers", "parameters", "score")
    for name in library.members:
        card = library.card(name)
        score = card.scores[-1].get("score", "") if card.scores else ""
        words = (card.name, card.task, card.data or "", card.licence or "")
        rank = max(card.targets.values())
        numbers = (rank, len(card.targets), f"{card.weights['parameters']:,}", str(score))
        table.add(*words, then=numbers)
    make_console().print(table)


def show(library: "Library", options: argparse.Namespace) -> None:
    """Print the card of a member."""
    for name in library.chosen([options.member]):
        make_console().print(library.card(name).text().rstrip(), markup=False, soft_wrap=True)


def remove(library: "Library", options: argparse.Namespace) -> None:
    """Remove members."""
    from mttl.library.library_folder import remove_members

    say(f"removed: {', '.join(remove_members(library.folder, options.members))}")


def run(library: "Library", options: argparse.Namespace) -> None:
    """Create a run from members."""
    from mttl.assembly.model import load_run
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym
    from mttl.library.library_run import make_run
    from mttl.library.member_gates import prepare_members
    from mttl.merging.check_written import changed_answer, check_written, task_answers
    from mttl.merging.fold import strip
    from mttl.training.report import attachment_table

    general = library.chosen(options.general) if options.general else []
    names = [name for name in library.chosen(options.members) if name not in general]
    if not names:
        raise ConfigError("--general names all members; leave at least one as a skill")
    overrides = list(options.override)
    if load_config(options.config, overrides, as_written=True).data.prefix == "auto":
        prefixes = {name: library.card(name).training.get("prefix") for name in names}
        overrides.append(f"data.prefix={_prefix_of(prefixes)}")
    config = load_config(options.config, overrides)
    for given in options.override:
        if given.startswith("skills."):
            raise ConfigError(f"{given}: skills come from the library; use --members and --mix")
    named = any(given.startswith("backbone.name=") for given in options.override)
    if config.backbone.kind == "pretrained" and not named:
        below = config.backbone.model_copy(update={"name": library.base.name})
        config = config.model_copy(update={"backbone": below})
    descriptions = None
    if config.data.descriptions:
        gym, tasks = open_gym(config), [library.card(name).task for name in names]
        descriptions = {task: gym.description(task) for task in tasks}
    if options.mix and config.moe is not None:
        raise ConfigError("--mix does not work with token routing (section moe); remove it")
    with new_folder(options.out) as temporary:
        _, made = make_run(
            *(library, names, config, temporary),
            mix=options.mix or "outputs",
            descriptions=descriptions,
            general=general,
            prepare=prepare_members,
        )
        answers = {} if options.no_probe else task_answers(made.model, made.tasks)
        one_each = config.router.kind in ("private", "polytropon")  # each task uses its own member
        if answers and config.moe is None and not general and one_each:
            bare = strip(made.model).backbone
            members = map(library.member, names)
            answers = {one.card.task: changed_answer(bare, one.changes) for one in members}
        if answers:
            check_written(temporary, load_run(temporary), answers)
    parts = (made.attachment, made.model, made.token_layers)
    make_console().print(attachment_table(*parts, is_trained=False))
    say(f"The run is in {options.out}")


def _prefix_of(prefixes: Mapping[str, str | None]) -> str:
    """Return the common task prefix of members by name; `none` if no card has one."""
    known = {p: [n for n, own in prefixes.items() if own == p] for p in prefixes.values() if p}
    if len(known) > 1:
        raise ConfigError(
            f"members differ in data.prefix ({'; '.join(grouped(known))}): use --members, or -k "
            "data.prefix=…"
        )
    return next(iter(known), "none")


def export(library: "Library", options: argparse.Namespace) -> None:
    """Export members as PEFT adapters."""
    from mttl.merging.check_written import changed_answer, check_written

    names = library.chosen(options.members)
    network = base_network(library.base, options)
    with new_folder(options.out) as temporary:
        for name in names:
            member, answers = library.member(name), {}
            copytree(library.place(name), temporary / name)
            if network is not None:
                if not options.no_probe:
                    answers = {name: changed_answer(network, member.changes)}
                check_written(temporary / name, network, answers)
    say(f"{len(names)} adapters are in {options.out}")


def cluster(library: "Library", options: argparse.Namespace) -> None:
    """Cluster members (model-based clustering), and write a matrix for the expert router."""
    from mttl.library import clusters

    console = make_console()
    members = [library.member(name) for name in library.chosen(options.members)]
    products = clusters.inner_products([member.changes for member in members], by=options.by)
    points, seed, scores = clusters.embedded(products, options.components), options.seed, {}
    if options.clusters:
        labels = clusters.k_means(points, options.clusters, seed=seed)
    else:
        labels, scores = clusters.best_clusters(points, options.most or len(points), seed=seed)
    if options.random:
        labels = clusters.shuffled(labels, seed=seed)
    shares = clusters.task_shares([member.card.task for member in members], labels)
    columns = [f"cluster{number}" for number in range(int(labels.max()) + 1)]
    rows = [{"task": task, **dict(zip(columns, row, strict=True))} for task, row in shares.items()]
    write_table(options.out, ["task", *columns], rows)
    for number, score in scores.items():
        console.print(f"{number} clusters: silhouette {score:.3f}")
    for number, column in enumerate(columns):
        own = [one.card.name for one, label in zip(members, labels, strict=True) if label == number]
        say(f"{column}: {', '.join(own)}")
    if 1 < len(columns) < len(members):
        console.print(f"silhouette of these clusters: {clusters.silhouette(points, labels):.3f}")
    say(
        "Train one skill per cluster: mttl train -c crossfit.yaml+router/expert.yaml "
        f"-k router.matrix={options.out} skills.n_skills={len(columns)}"
    )


def _declare(parser: CommandParser) -> None:
    words = parser.add_subparsers(metavar="WORD", required=True)
    examples = (parser.description or "").splitlines()

    def word(name: str, work: Callable[..., None]) -> CommandParser:
        shown = [line for line in examples if re.search(rf"library {name} ", line)]
        said, raw = "\n".join([work.__doc__ or "", "", *shown]), parser.formatter_class
        made = words.add_parser(name, help=work.__doc__, description=said, formatter_class=raw)
        made.set_defaults(work=work)
        made.read.add_argument("library", metavar="LIBRARY", help="folder of the library")
        return made

    members = dict(LIST, metavar="MEMBER", help="names or patterns of members (all)")
    parser = word("add", add)
    option = parser.read.add_argument
    help = "folders, patterns of folders, or OWNER/NAME[@REVISION] on the hub"
    option("sources", nargs="+", metavar="SOURCE", help=help)
    option("--backbone", metavar="NAME", help="base model (as named in the sources)")
    option("--rank", **dict(POSITIVE, metavar="R"), help="runs: maximum rank of adapters (exact)")
    option("--skills", action="store_true", help="runs: add each skill instead of each task")
    option = parser.written.add_argument
    option("--name", metavar="TEXT", help="names, where * stands for the original name (*)")
    option("--licence", metavar="TEXT", help="licence of the members (as in their cards)")
    option("--data", metavar="TEXT", help="training data of the members (as in their cards)")
    parser.add_no_probe()
    word("list", show_all)
    option = word("remove", remove).read.add_argument
    option("members", nargs="+", metavar="MEMBER", help="names, or patterns with * and ?")
    option = word("show", show).read.add_argument
    option("member", metavar="MEMBER", help="a name, or a pattern with * and ?")
    parser = word("run", run)
    parser.add_config()
    parser.read.add_argument("--members", **members)
    option = parser.work.add_argument
    help = "members whose mean is subtracted from the others (general knowledge)"
    option("--general", **dict(members, help=help))
    option("--mix", choices=("outputs", "deltas", "factors"), help="what is averaged (outputs)")
    parser.add_out(metavar="RUN", probe=True)
    parser = word("export", export)
    option = parser.read.add_argument
    option("members", nargs="*", metavar="MEMBER", help="names, or patterns with * and ? (all)")
    parser.add_out(probe=True)
    parser = word("cluster", cluster)
    parser.read.add_argument("--members", **members)
    option = parser.work.add_argument
    number = parser.work.add_mutually_exclusive_group().add_argument
    number("--clusters", **POSITIVE, help="number of clusters (chosen by silhouette)")
    number("--most", **POSITIVE, help="maximum number of clusters, if it is selected automatically")
    option("--components", **POSITIVE, default=64, help="components of the SVD (64)")
    bases = ("weights", "changes")
    option("--by", choices=bases, default="weights", help="compare factors or weight changes")
    option("--random", action="store_true", help="random clusters of the same sizes, as a baseline")
    option("--seed", **NATURAL, default=0, help="seed of k-means and of --random (0)")
    parser.add_out("CSV file to write; must not exist", metavar="FILE")


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Run the subcommand."""
    if options.work is add:
        add(options)
        return
    check_library(options.library)  # before slow imports
    from mttl.library.library_folder import open_library

    options.work(open_library(options.library), options)

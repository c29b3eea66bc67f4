"""Ways to route in a library of skills, beside skills that were trained together."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from comparison.existing import read_unseen
from comparison.folder import ROOT, Comparison
from comparison.methods import MODE_WAYS, Method, Plan, Way
from comparison.stages import Processes
from comparison.tables import Score
from mttl.errors import MttlError
from mttl.gym.partition import select_tasks
from mttl.reading import read_json

LIBRARY = str(ROOT / "scripts" / "library.py")
SEEN, MEMBERS, WITH_GENERAL, COST = "seen", "members", "with_general", "query_cost"
CLUSTERED = ("mbc", "random_clusters")  # a skill per cluster, trained jointly on its tasks
CLUSTERS, EXPERTS = "_table", "_skills"  # of these: the table of clusters, and a library of skills


@dataclass(frozen=True)
class Made(Method):
    """A run of members of a library, which trains nothing but what its router asks for.

    Args:
        library: Whose members; see `LibraryComparison`.
    """

    library: str = MEMBERS


def measured(*names: str) -> dict[str, Made]:
    """Return runs of members under routers of these names, of which a query is measured."""
    return {name: Made(f"router/{name}.yaml", measured=True) for name in names}


@dataclass(frozen=True)
class Row:
    """A row of the tables: one run, asked without rows of a new task and with some.

    Args:
        method: Whose run.
        none: How it answers a new task without examples, if it does.
        few: How it takes some; otherwise it has no use for them.
    """

    method: str
    none: Way | None
    few: Way | None


def _way(name: str, *settings: str) -> Way:
    return Way(name, tuple(f"adapt.{setting}" for setting in settings))


TRAIN_ALL, _, ROUTER_ONLY, *_ = MODE_WAYS
START = _way("start", "mode=zero_shot", "examples=0")
# A router that reads prompts wants to be shown a row as well, and does not look at it here.
PROMPTED = _way("start", "mode=zero_shot", "examples=1")
OWN = _way("own", "mode=skills_only", "init=own")
BARE = _way("bare", "mode=skills_only", "init=own", "examples=0")
OVER_MEMBERS = "mode=router_only"
MEMBER_ROW = _way("row", OVER_MEMBERS, "init=learned")
CAT = _way("cat", OVER_MEMBERS, "init=coefficients")
LORAHUB = _way("lorahub", OVER_MEMBERS, "init=coefficients", "gradient_free=true")
SHOWN = _way("shown", "mode=zero_shot")


def _arrow(library: str = MEMBERS, **settings: float) -> Made:
    chosen = tuple(f"moe.router.{name}={value}" for name, value in settings.items())
    return Made("router/arrow.yaml", chosen, library=library)


# In the order of running: what others are made of comes before them.
METHODS: dict[str, Method] = {
    "private": Method("router/private.yaml", measured=True),
    "polytropon": Method("router/polytropon.yaml", measured=True),
    "c_poly": Method("router/c_poly.yaml", measured=True),
    "shared": Method("router/shared.yaml", measured=True),
    "mbc": Method("router/expert.yaml"),
    "random_clusters": Method("router/expert.yaml"),
    "uniform": Made("router/average.yaml", measured=True),
    **measured("retrieval", "arrow", "spectral", "phatgoose"),
    "retrieval_examples": Made("router/retrieval.yaml", ("router.by=examples",)),
    "arrow_top1": _arrow(top_k=1),
    "arrow_top10": _arrow(top_k=10),
    "arrow_sharp": _arrow(temperature=0.1),
    "retrieval_top1": Made("router/retrieval.yaml", ("router.top_k=1",)),
    "arrow_general": _arrow(WITH_GENERAL),
    "mbc_arrow": replace(_arrow(f"mbc{EXPERTS}"), measured=True),
    "random_clusters_arrow": _arrow(f"random_clusters{EXPERTS}"),
    "smear": Method("router/smear.yaml", one_speed=True, measured=True),
}
ROWS = {
    "polytropon": Row("polytropon", START, TRAIN_ALL),
    "polytropon_row": Row("polytropon", None, ROUTER_ONLY),
    "c_poly": Row("c_poly", START, TRAIN_ALL),
    "shared": Row("shared", START, TRAIN_ALL),
    "smear": Row("smear", PROMPTED, TRAIN_ALL),
    "own": Row("private", BARE, OWN),
    "uniform": Row("uniform", START, None),
    "retrieval": Row("retrieval", PROMPTED, None),
    "retrieval_examples": Row("retrieval_examples", None, SHOWN),
    "row": Row("uniform", None, MEMBER_ROW),
    "cat": Row("uniform", None, CAT),
    "lorahub": Row("uniform", None, LORAHUB),
    "arrow": Row("arrow", START, None),
    "arrow_general": Row("arrow_general", START, None),
    "spectral": Row("spectral", START, None),
    "phatgoose": Row("phatgoose", START, None),
    "mbc": Row("mbc", START, TRAIN_ALL),
    "mbc_arrow": Row("mbc_arrow", START, None),
    "random_clusters": Row("random_clusters", START, TRAIN_ALL),
    "random_clusters_arrow": Row("random_clusters_arrow", START, None),
}
VARIANTS = {
    **{name: Row(name, START, None) for name in ("arrow_top1", "arrow_top10", "arrow_sharp")},
    "retrieval_top1": Row("retrieval_top1", PROMPTED, None),
}
ALL_ROWS = ROWS | VARIANTS


@dataclass(frozen=True)
class LibraryComparison(Comparison):
    """A comparison whose runs are trained, or made of libraries that came of others.

    Of each seed, the tasks of the private run are the members of a library (``members``); a second
    has the one skill of the shared run besides, whose share of the others is taken away
    (``with_general``). Members are dealt out to clusters, by their weights and at random; a skill
    per cluster is trained, and these skills are a library too (``mbc_skills``). Whatever something
    is made of is made first.

    Args:
        clusters: How many.
        n_seen: How many training tasks are asked for; all by default.
    """

    clusters: int = 8
    n_seen: int | None = None
    _locks: dict[tuple[str, int], Lock] = field(default_factory=dict)

    def shared_settings(self) -> dict[str, object]:
        """Return what all runs share."""
        return super().shared_settings() | {"clusters": self.clusters, "seen": self.n_seen}

    def matrix(self, item: Plan) -> Path:
        """Return where the clusters of the members stand, a row per task."""
        return self.out / f"{item.name}{CLUSTERS}" / f"seed{item.seed}.csv"

    def training(self, item: Plan) -> list[str]:
        """Return the settings of one training."""
        found = super().training(item)
        if item.name in CLUSTERED:
            found += [f"router.matrix={self.matrix(item)}", f"skills.n_skills={self.clusters}"]
        return found

    def check_matrix(self, item: Plan, name: str, tasks: list[str], n_skills: int) -> None:
        """Do nothing: the matrices are made here, and name the tasks of training alone."""

    def stages(self, item: Plan) -> list[str]:
        """Return the names of all that has to be run."""
        seen = [SEEN] if self._start(item) else []
        return [*super().stages(item), *seen]

    def run(self, item: Plan, processes: Processes) -> None:
        """Make a run and adapt it, leaving out what has ended, and ask it for the tasks seen."""
        super().run(item, processes)
        start = self._start(item)
        if start and not self.cost(item, SEEN).ended:
            samples = ",".join(map(str, self._common.data.samples))
            given = [*start.settings, f"adapt.seeds=[{item.seed}]", *self.shared(item)]
            run = self.run_folder(item)
            command = [str(ROOT / "pl_finetune.py"), "-c", self.config, "--from", str(run)]
            command += ["--tasks", ",".join(self.seen), "--samples", samples, "--allow-seen"]
            self.command(item, SEEN, [*command, "--out", str(run / SEEN), "-k", *given], processes)

    @cached_property
    def seen(self) -> list[str]:
        """The training tasks that are asked for, which lie evenly among all."""
        tasks = select_tasks(self.partitions[0].train, self.gym, self._common.data.skip_missing)
        return evenly(tasks, self.n_seen or len(tasks))

    def seen_scores(self, item: Plan) -> list[Score]:
        """Read the scores of the training tasks: of members, without being told the task."""
        found: list[Score] = []
        if not isinstance(self.methods[item.name], Made):
            found = super().seen_scores(item)
        elif self.cost(item, SEEN).ended:
            found = read_unseen(self.run_folder(item) / SEEN, item.name, "", item.seed)
        return [replace(score, side="seen") for score in found if score.task in self.seen]

    def train(self, item: Plan, processes: Processes) -> None:
        """Make a run, a library or clusters, and before it what it is made of; each of them once.

        Items that need the same thing wait for the first of them to make it.
        """
        with self._locks.setdefault((item.name, item.seed), Lock()):
            if self.cost(item, "train").ended:
                return
            needs, command = self._recipe(item)
            for name in needs:
                self.train(Plan(name, item.seed), processes)
            self.command(item, "train", command, processes)

    def measure(self, items: Sequence[Plan]) -> None:
        """Measure what a query costs in runs of one seed that differ in it, side by side.

        All of them, where one is not known; else none.
        """
        item = Plan(COST, items[0].seed)
        chosen = [own for own in items if self.methods[own.name].measured]
        known = {query["name"] for query in self.queries()}
        if any(own.name not in known for own in chosen):
            script = str(ROOT / "scripts" / "benchmarks" / "query_cost.py")
            runs = [f"{own.name}={self.run_folder(own)}" for own in chosen]
            processes = Processes(n_threads=1)
            with processes.stopping():
                self.command(item, "train", [script, *runs, "--json", str(self.costs)], processes)

    @property
    def costs(self) -> Path:
        """The file of the costs of a query."""
        return self.out / COST / "queries.json"

    def queries(self) -> list[dict[str, Any]]:
        """Return what was measured of queries, the bare backbone's first."""
        return read_json(self.costs, MttlError, dict)["rows"] if self.costs.is_file() else []

    def _start(self, item: Plan) -> Way | None:
        """Return how a run of members answers the members' tasks, which it is not told."""
        if not isinstance(self.methods[item.name], Made):
            return None
        return next((x.none for x in ALL_ROWS.values() if x.method == item.name and x.none), None)

    def _recipe(self, item: Plan) -> tuple[list[str], list[str]]:
        """Return what an item is made of, and the command that makes it."""
        name, method = item.name, self.methods.get(item.name)
        if isinstance(method, Made):
            general = ["--general", f"seed{item.seed}-0"] if method.library == WITH_GENERAL else []
            command = [LIBRARY, "run", self._of(method.library, item), "-c", self.files(item)]
            command += ["--out", self._new(self.run_folder(item)), *general]
            given = [*self.overrides, f"run.seed={item.seed}", *method.training()]
            return [method.library], [*command, "-k", *given]
        if method is not None:
            needs = [name + CLUSTERS] if name in CLUSTERED else []
            return needs, self.train_command(item)
        training = name.removesuffix(CLUSTERS)
        if training != name:
            out = self._new(self.matrix(replace(item, name=training)))
            # Members that did not train from one start are alike in what they change alone.
            given = ["--clusters", str(self.clusters), "--by", "changes", "--seed", str(item.seed)]
            given += ["--random"] if training == "random_clusters" else []
            return [MEMBERS], [LIBRARY, "cluster", self._of(MEMBERS, item), "--out", out, *given]
        if name == MEMBERS:
            sources, words = ["private"], []
        elif name == WITH_GENERAL:
            sources, words = [MEMBERS, "shared"], ["--skills"]
        else:
            sources, words = [name.removesuffix(EXPERTS)], ["--skills"]
        command = [LIBRARY, "add", self._new(self.run_folder(item))]
        return sources, [*command, *(self._of(source, item) for source in sources), *words]

    def _of(self, name: str, item: Plan) -> str:
        return str(self.run_folder(replace(item, name=name)))

    @staticmethod
    def _new(path: Path) -> str:
        """Return a path where nothing is: what was made there was not noted to have ended."""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return str(path)


def library_plans(names: Sequence[str], numbers: Sequence[int], seeds: Sequence[int]) -> list[Plan]:
    """Return what to run: each run with all the ways in which it is asked.

    Args:
        names: Of rows.
        numbers: Of examples; those of 0 are the start.
        seeds: Of training and adaptation.
    """
    ways: dict[str, list[Way]] = {}
    for name in names:
        row = ALL_ROWS[name]
        own = ways.setdefault(row.method, [])
        own += [way for number in numbers if (way := asked(row, number)) and way not in own]
    order = [name for name in METHODS if name in ways]
    return [Plan(name, seed, tuple(ways[name])) for seed in dict.fromkeys(seeds) for name in order]


def asked(row: Row, number: int) -> Way | None:
    """Return how a row is asked with so many examples, if it is."""
    if number == 0:
        return row.none
    return row.few and row.few.with_examples(number)


def evenly(tasks: Sequence[str], n: int) -> list[str]:
    """Return so many of some tasks, which lie evenly among all; all if there are no more."""
    n = min(n, len(tasks))
    return [tasks[number * len(tasks) // n] for number in range(n)]

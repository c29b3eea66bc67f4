"""Trials drawn from ranges: an Optuna study, which several processes may share.

References:
    Ranges are sampled by a tree-structured Parzen estimator: Bergstra, Bardenet, Bengio and Kégl,
    Algorithms for Hyper-Parameter Optimization, NeurIPS 2011; in Optuna: Akiba, Sano, Yanase, Ohta
    and Koyama, KDD 2019, arXiv:1907.10902.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.config.schema import Range, Search
from mttl.io.errors import ConfigError, MttlError, raised_as
from mttl.io.files import drop_cut_line
from mttl.io.record import as_row, check
from mttl.runtime.libraries import check_libraries

# Values of the searched settings by dotted name.
Values = dict[str, Any]
TrialResults = tuple[FewShotResult, ...]


def open_study(
    search: Search, jobs: Sequence[FewShotJob], storage: str | Path, origin: str = ""
) -> Any:
    """Return the Optuna study of ranges, seed, jobs and origin, creating it if necessary.

    ``storage`` is a journal that only this process writes, as a path; or, as text, the URL of a
    database or a journal file that several processes share. ``origin`` has the settings of trials.

    Raises:
        ConfigError: If the storage cannot be opened.
    """
    check_libraries("optuna")
    import optuna.storages.journal
    import sqlalchemy.exc

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lock: Any = None
    if isinstance(storage, Path):
        drop_cut_line(storage)
        # The folder is locked. Optuna's own lock file would remain after a kill.
        lock = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    failures = (OSError, ImportError, sqlalchemy.exc.SQLAlchemyError)
    with raised_as(ConfigError, "--storage cannot be opened", *failures):
        given: Any = storage
        if "://" not in str(storage):
            backend = optuna.storages.journal.JournalFileBackend(str(storage), lock)
            given = optuna.storages.JournalStorage(backend)
        return optuna.create_study(
            storage=given,
            study_name=_digest(search.ranges, search.seed, jobs, origin),
            direction="maximize",
            load_if_exists=True,
        )


def search_ranges(
    search: Search,
    evaluate: Callable[[Values], tuple[float, TrialResults]],
    study: Any,
    place: str = "",
) -> list[tuple[Values, TrialResults]]:
    """Sample and evaluate trials up to the limit, continuing an earlier start.

    Samples depend only on the seed and the earlier trials, so an interruption does not change the
    result. Trials of an earlier start at this ``place`` are evaluated again from the results of
    their jobs. Returned are the trials of all places with results, in the order of their numbers.
    """
    import optuna

    states = optuna.trial.TrialState

    def found(*wanted: Any) -> list[Any]:
        return study.get_trials(deepcopy=False, states=wanted)

    def here(trial: Any) -> bool:
        return trial.user_attrs.get("place", "") == place

    def values_of(trial: Any) -> Values:
        return {name: trial.params[name] for name in search.ranges}

    for trial in filter(here, found(states.RUNNING)):
        study.tell(trial.number, state=states.FAIL)  # killed
    for trial in filter(here, found(states.COMPLETE)[: search.trials]):
        evaluate(values_of(trial))
    while len(found(states.COMPLETE, states.RUNNING)) < search.trials:
        trial = study.ask()
        trial.set_user_attr("place", place)
        others = found(states.COMPLETE, states.RUNNING)
        number = sum(other.number < trial.number for other in others)
        if number >= search.trials:  # others were faster
            study.tell(trial, state=states.FAIL)
            break
        # A seed per trial: a common one would repeat its samples after every restart, and a sum
        # would give equal samples to trials of neighbouring seeds.
        own_seed = int(np.random.SeedSequence([search.seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed)
        try:
            score, results = evaluate(
                {name: _draw(trial, name, bounds) for name, bounds in search.ranges.items()}
            )
        except BaseException:
            study.tell(trial, state=states.FAIL)
            raise
        trial.set_user_attr("results", [as_row(result) for result in results])
        study.tell(trial, score)
    ended = []
    for trial in found(states.COMPLETE)[: search.trials]:
        rows, said = trial.user_attrs.get("results", ()), f"trial {trial.number}"
        results = tuple(check(FewShotResult, row, said, MttlError) for row in rows)
        ended += [(values_of(trial), results)] if results else []  # diverged ones have none
    return ended


def _draw(trial: Any, name: str, bounds: Range) -> float:
    whole = isinstance(bounds.low, int) and isinstance(bounds.high, int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, bounds.low, bounds.high, log=bounds.log)


def _digest(ranges: Mapping[str, Range], seed: int, jobs: Sequence[FewShotJob], origin: str) -> str:
    bounds = [[name, [own.low, own.high, own.log]] for name, own in ranges.items()]
    of_all = [bounds, seed, [list(vars(job).values()) for job in jobs], *filter(None, [origin])]
    return hashlib.sha256(json.dumps(of_all).encode()).hexdigest()[:16]

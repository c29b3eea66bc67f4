"""Settings drawn from ranges by Optuna's tree-structured Parzen estimator.

References:
    Bergstra, Bardenet, Bengio and Kégl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011.
    Akiba, Sano, Yanase, Ohta and Koyama, Optuna, KDD 2019, arXiv:1907.10902.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mttl.adaptation.plan import FewShotJob
from mttl.adaptation.search import Values
from mttl.config.schema import Range, Search
from mttl.io.errors import ConfigError
from mttl.io.files import drop_cut_line


def search_ranges(
    search: Search,
    evaluate: Callable[[Values], float],
    *,
    jobs: Sequence[FewShotJob],
    journal: Path,
) -> None:
    """Draw and evaluate trials until there are enough, continuing an earlier start.

    Draws depend only on the seed and the finished trials, so an interrupted search ends like an
    uninterrupted one. Trials of an earlier start are evaluated again, from the results of their
    jobs. Other jobs, ranges or seeds begin another search in the same journal. The folder is
    locked by the caller.
    """
    optuna, ranges, seed = _optuna(), search.ranges, search.seed
    drop_cut_line(journal)
    backend = optuna.storages.journal.JournalFileBackend(str(journal), _Held())
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name=_digest(ranges, seed, jobs),
        direction="maximize",
        load_if_exists=True,
    )
    states = optuna.trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)  # it was interrupted
    finished = study.get_trials(states=(states.COMPLETE,))[: search.trials]
    for trial in finished:
        evaluate({name: trial.params[name] for name in ranges})
    for number in range(len(finished), search.trials):
        # A seed for each trial: one for all would begin its draws again after every start.
        study.sampler = optuna.samplers.TPESampler(seed=_seed_of(seed, number))
        trial = study.ask()
        values = {name: _draw(trial, name, bounds) for name, bounds in ranges.items()}
        study.tell(trial, evaluate(values))


class _Held:
    """No lock: the folder has one. Optuna's own is a file that a kill leaves, and all wait for."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _seed_of(seed: int, number: int) -> int:
    """Return a trial's seed; a sum would give trials of neighbouring seeds the same draws."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _draw(trial: Any, name: str, bounds: Range) -> float:
    whole = isinstance(bounds.low, int) and isinstance(bounds.high, int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, bounds.low, bounds.high, log=bounds.log)


def _digest(ranges: Mapping[str, Range], seed: int, jobs: Sequence[FewShotJob]) -> str:
    bounds = [[name, [own.low, own.high, own.log]] for name, own in ranges.items()]
    text = json.dumps([bounds, seed, [list(vars(job).values()) for job in jobs]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise ConfigError(
            "search.ranges needs Optuna, which is not installed: pip install optuna. "
            "A search.grid needs nothing"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

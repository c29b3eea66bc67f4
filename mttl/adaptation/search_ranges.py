"""Settings drawn from ranges by Optuna's tree-structured Parzen estimator.

References:
    Bergstra, Bardenet, Bengio and Kégl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011.
    Akiba, Sano, Yanase, Ohta and Koyama, Optuna, KDD 2019, arXiv:1907.10902.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
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
    # The folder has a lock. Optuna's own is a file that a kill leaves, and all wait for.
    held: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    backend = optuna.storages.journal.JournalFileBackend(str(journal), held)
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
        # A seed for each trial: one for all would begin its draws again after every start. A sum
        # would give trials of neighbouring seeds the same draws.
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed)
        trial = study.ask()
        values = {name: _draw(trial, name, bounds) for name, bounds in ranges.items()}
        study.tell(trial, evaluate(values))


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

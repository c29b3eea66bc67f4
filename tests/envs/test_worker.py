"""Slots played by other processes are played as in this one."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import process
from envs.errors import LevelError, SimulationError
from envs.interface import Observation, Transition
from envs.local import LocalVectorEnv
from envs.process import WorkerProcess
from envs.worker import WorkerVectorEnv
from helpers.processes import is_running

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")

# One room, one with twice the time, and doors; short episodes, so that many end.
LEVEL_NAMES = ("GoToLocalS5N2", "PutNextLocalS5N3", "OpenRedDoor")
N_SLOTS = 3


def make_local(**options: Any) -> LocalVectorEnv:
    return LocalVectorEnv(LEVEL_NAMES, N_SLOTS, seed=4, **options)


def make_workers(n_workers: int = 1, **options: Any) -> WorkerVectorEnv:
    settings: dict[str, Any] = {"levels": LEVEL_NAMES, "n_slots": N_SLOTS, "seed": 4, **options}
    return WorkerVectorEnv(n_workers=n_workers, **settings)


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[WorkerVectorEnv] = []

    def make_and_note(n_workers: int = 1, **options: Any) -> WorkerVectorEnv:
        made.append(make_workers(n_workers, **options))
        return made[-1]

    yield make_and_note
    for env in made:
        env.close()


# Starting a worker takes a second: tests that do the environments no harm share these.
@pytest.fixture(scope="module")
def env() -> Iterator[WorkerVectorEnv]:
    env = make_workers(2)
    yield env
    env.close()


def random_actions(n_steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(7, size=(n_steps, len(LEVEL_NAMES), N_SLOTS))


def assert_same(a: Any, b: Any) -> None:
    """Compare observations or transitions, part by part."""
    if a is None or b is None:
        assert a is b
    elif isinstance(a, Observation | Transition):
        for name, part in vars(a).items():
            assert_same(part, getattr(b, name))
    else:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("n_workers", "options"),
    [
        (2, {}),
        *(pytest.param(n_workers, {}, marks=pytest.mark.slow) for n_workers in (1, 3)),
        pytest.param(2, {"evaluation": True, "first_slot": 5}, marks=pytest.mark.slow),
    ],
)
def test_results_do_not_depend_on_the_number_of_workers(make, env, n_workers, options) -> None:
    local, workers = make_local(**options), make(n_workers, **options)
    assert (workers.levels, workers.n_slots) == (LEVEL_NAMES, N_SLOTS)
    actions = random_actions(200)
    finals = terminated = 0
    assert_same(workers.reset(), local.reset())
    for action in actions[:100]:
        transition = workers.step(action)
        assert_same(transition, local.step(action))
        finals += transition.final is not None
        terminated += transition.terminated.any()
    assert finals
    assert terminated

    # States too: either goes on from the other's, and so does another number of workers, made for
    # something else.
    local_state, state = local.state(), workers.state()
    first = local.load_state(state)
    assert_same(workers.load_state(local_state), first)
    assert_same(env.load_state(state), first)
    for action in actions[100:]:
        transition = local.step(action)
        assert_same(workers.step(action), transition)
        assert_same(env.step(action), transition)
    assert_same(workers.reset(), local.reset())


@pytest.mark.parametrize("n_workers", [0, N_SLOTS + 1])
def test_there_are_at_most_as_many_workers_as_slots(make: Any, n_workers: int) -> None:
    with pytest.raises(ValueError, match=rf"n_workers \({n_workers}\) must be from 1 to n_slots"):
        make(n_workers)


def test_a_worker_that_is_killed_is_an_error_and_takes_the_others_along(make: Any) -> None:
    env = make(2)
    for use in (env.state, lambda: env.step(random_actions(1)[0])):
        with pytest.raises(SimulationError, match="have not begun: call reset first"):
            use()
    env.reset()
    pids = [worker.pid for worker in env._workers]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(
        SimulationError,
        match="the worker of slots 1 to 2 of GoToLocalS5N2, PutNextLocalS5N3, OpenRedDoor died: "
        "SIGKILL",
    ):
        env.step(random_actions(1)[0])
    assert not any(map(is_running, pids))
    for use in (env.reset, env.state, lambda: env.step(random_actions(1)[0])):
        with pytest.raises(SimulationError, match="the environments are closed; make new ones"):
            use()
    env.close()


@pytest.mark.parametrize("limit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_environment_that_raises_names_its_place(make, limit, monkeypatch) -> None:
    function = "helpers.broken_worker:serve_without_" + ("limit" if limit else "grid")
    monkeypatch.setattr(
        "envs.worker.WorkerProcess", lambda _, name, shared: WorkerProcess(function, name, shared)
    )
    env = make()
    pids = [worker.pid for worker in env._workers]
    if limit:
        with pytest.raises(LevelError, match="level 'PutNextLocal' has no step limit"):
            env.reset()
    else:
        env.reset()
        with pytest.raises(
            SimulationError, match=r"level 'PutNextLocalS5N3', slot 1, .*seed \d+: AttributeError"
        ):
            env.step(random_actions(1)[0])
    assert not any(map(is_running, pids))


def test_an_interrupted_step_is_finished_before_what_comes_next(env, monkeypatch) -> None:
    local = make_local()
    env.reset()
    local.load_state(env.state())
    actions = random_actions(3)
    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(actions[0])
    local.step(actions[0])
    saved = env.state()
    for action in actions[1:]:
        assert_same(env.step(action), local.step(action))
    back = local.load_state(saved)
    assert_same(env.load_state(saved), back)


def interrupt(worker: WorkerProcess) -> None:
    raise KeyboardInterrupt


def test_what_goes_wrong_at_the_start_leaves_no_process(make, monkeypatch) -> None:
    started: list[WorkerProcess] = []
    ask = WorkerProcess.ask

    def fail_at_the_second(worker: WorkerProcess, message: Any) -> None:
        started.append(worker)
        if len(started) == 2:
            raise OSError("no more memory")
        ask(worker, message)

    monkeypatch.setattr(process, "PATIENCE", 0.2)
    monkeypatch.setattr(WorkerProcess, "ask", fail_at_the_second)
    with pytest.raises(OSError, match="no more memory"):
        make(2)
    assert not any(is_running(worker.pid) for worker in started)


def test_workers_end_with_the_object() -> None:
    # What tests that raised left behind goes first, or it would be counted below.
    gc.collect()
    env = WorkerVectorEnv(["GoToObj"], 1, seed=0, n_workers=1)
    pids = [worker.pid for worker in env._workers]
    observation = env.reset().image
    descriptors, memory = len(os.listdir("/proc/self/fd")), count_shared_memory()
    del env
    gc.collect()
    assert not any(map(is_running, pids))
    # The socket is closed and the memory gone, but what was returned stays.
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert count_shared_memory() == memory - 1
    assert observation.any()


def count_shared_memory() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:slots")

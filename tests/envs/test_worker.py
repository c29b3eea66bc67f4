"""Slots played by other processes are played as in this one."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from envs.interface import SimulationError
from envs.local import LocalVectorEnv
from envs.process import WorkerProcess
from envs.vector import WorkerVectorEnv
from helpers.processes import is_running
from helpers.same_game import assert_same

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks into /proc")

# One room, one with twice the time, and doors; short episodes, so that many end.
LEVEL_NAMES = ("GoToLocalS5N2", "PutNextLocalS5N3", "OpenRedDoor")
N_SLOTS = 3


def make_local(**options: Any) -> LocalVectorEnv:
    return LocalVectorEnv(LEVEL_NAMES, N_SLOTS, seed=4, **options)


def make_workers(n_workers: int, **options: Any) -> WorkerVectorEnv:
    """They end with the object."""
    return WorkerVectorEnv(LEVEL_NAMES, N_SLOTS, seed=4, n_workers=n_workers, **options)


# Starting a worker takes a second: tests that do the environments no harm share these.
@pytest.fixture(scope="module")
def env() -> Iterator[WorkerVectorEnv]:
    env = make_workers(2)
    yield env
    env.close()


def random_actions(n_steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(7, size=(n_steps, len(LEVEL_NAMES), N_SLOTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_workers", "options"),
    [
        (2, {}),
        *(pytest.param(n_workers, {}, marks=pytest.mark.slow) for n_workers in (1, 3)),
        pytest.param(2, {"evaluation": True, "first_slot": 5}, marks=pytest.mark.slow),
    ],
)
def test_results_do_not_depend_on_the_number_of_workers(env, n_workers, options) -> None:
    local, workers = make_local(**options), make_workers(n_workers, **options)
    assert (workers.levels, workers.n_slots) == (LEVEL_NAMES, N_SLOTS)
    actions = random_actions(200)
    truncated = terminated = 0
    assert_same(workers.reset(), local.reset())
    for action in actions[:100]:
        transition = workers.step(action)
        assert_same(transition, local.step(action))
        truncated += transition.truncated.any()
        terminated += transition.terminated.any()
    assert truncated
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


def test_a_worker_that_dies_or_raises_names_its_place() -> None:
    env = make_workers(2)
    env.reset()
    pids = [worker.pid for worker in env._workers]
    state = env.state()
    with pytest.raises(SimulationError, match=r"level 'GoToLocalS5N2', slot 0, .*seed \d+: Value"):
        env.step(np.full((3, N_SLOTS), 9))  # there is no such action
    state["slots"][2][1]["actions"] += "6" * 9999
    with pytest.raises(ValueError, match="another episode of level 'OpenRedDoor'"):
        env.load_state(state)
    os.kill(pids[1], signal.SIGKILL)
    slots = "slots 1 to 2 of GoToLocalS5N2, PutNextLocalS5N3, OpenRedDoor"
    with pytest.raises(SimulationError, match=f"the worker of {slots} died: SIGKILL"):
        env.step(random_actions(1)[0])
    env.close()
    env.close()
    assert not any(map(is_running, pids))


def test_an_interrupted_step_is_finished_before_what_comes_next(env, monkeypatch) -> None:
    local = make_local()
    env.reset()
    local.load_state(env.state())
    actions = random_actions(3)
    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "answer", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            env.step(actions[0])
    local.step(actions[0])
    saved = env.state()
    for action in actions[1:]:
        assert_same(env.step(action), local.step(action))
    back = local.load_state(saved)
    assert_same(env.load_state(saved), back)


@pytest.mark.slow
def test_workers_end_with_the_object() -> None:
    # What tests that raised left behind goes first, or it would be counted below.
    gc.collect()
    env = WorkerVectorEnv(["GoToObj"], 1, seed=0, n_workers=1)
    pids = [worker.pid for worker in env._workers]
    observation = env.reset().image
    descriptors = len(os.listdir("/proc/self/fd"))
    del env
    gc.collect()
    assert not any(map(is_running, pids))
    # The socket is closed, but what was returned stays.
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert observation.any()

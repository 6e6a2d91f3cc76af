import pytest

from broker.states import WorkerState
from gpu_worker import fitness as module
from gpu_worker.exits import EXIT_ENGINE
from gpu_worker.fitness import Fitness
from gpu_worker.in_hand import InHand
from gpu_worker.standing import Standing


@pytest.fixture
def ended(monkeypatch):
    """How the process would have ended, and after how long."""
    ends = []
    monkeypatch.setattr(module, "end_process", lambda code, reason: ends.append((code, reason)))
    monkeypatch.setattr(module, "call_later", lambda seconds, call: (ends.append(seconds), call()))
    return ends


@pytest.fixture
def standing():
    return Standing()


@pytest.fixture
def told():
    return []


@pytest.fixture
def fitness(standing, told, ended):
    return Fitness(3, 60.0, standing, InHand(), lambda: told.append(standing.state))


def test_so_many_failures_in_a_row_set_the_worker_aside(fitness, standing, told, ended):
    for index in range(2):
        fitness.note_failure("j", index, "boom")
    assert (told, ended) == ([], [])
    fitness.note_failure("j", 2, "boom")
    assert (told, standing.reason) == ([WorkerState.POISONED], "failed 3 requests in a row, the last with: boom")
    assert ended == [60.0, (EXIT_ENGINE, f"set aside: {standing.reason}")]


def test_a_success_between_them_clears_the_worker(fitness, standing):
    for index in range(5):
        fitness.note_failure("j", index, "boom")
        if index % 2:
            fitness.note_success()
    assert standing.state is not WorkerState.POISONED


def test_the_same_request_again_says_nothing_new(fitness, standing):
    for _ in range(9):
        fitness.note_failure("j", 0, "boom")
    assert standing.state is not WorkerState.POISONED


def test_it_is_set_aside_once(fitness, told, ended):
    fitness.set_aside("broken")
    fitness.set_aside("broken again")
    assert (len(told), len(ended)) == (1, 2)

"""Which of this machine's workers come and go, with processes that are none."""

import signal
import subprocess
import sys

import pytest

from broker.records import Session
from driver.errors import WorkerStartError
from driver.scalers.local import LocalWorkers
from driver.scalers.share import LocalShare, requests_in_hand

START = subprocess.Popen


def start_failing(options):
    return START([sys.executable, "-S", "-c", "raise SystemExit(1)"], **options)


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """Workers that only wait until they are told to end."""
    start = subprocess.Popen
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **options: start(sleeper, **options))
    made = LocalWorkers({}, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def share(workers):
    return LocalShare(workers)


def rows(workers, *in_hand):
    """A ready session of each worker, oldest first, with so many requests in hand."""
    ids = [worker.instance for worker in workers._workers]
    return [
        Session(id=name, worker=name, epoch=1, state="ready", instance=name, inhand_requests=count)
        for name, count in zip(ids, in_hand, strict=True)
    ]


def elsewhere(name, state="ready", **fields):
    return Session(id=name, worker=name, epoch=1, state=state, instance=name, **fields)


def test_the_least_loaded_go_and_of_those_the_youngest(share, workers):
    share.scale(4, [])
    table = rows(workers, 5, 0, 3, 0)
    first, second, third, fourth = (row.instance for row in table)
    share.scale(3, table)
    assert workers.instances == {first, second, third}
    share.scale(2, table)
    assert workers.instances == {first, third}
    share.scale(1, table)
    assert workers.instances == {first}
    assert workers.leaving_instances == {second, third, fourth}


def test_a_worker_that_loads_yet_goes_before_an_idle_one(share, workers):
    share.scale(2, [])
    loading, idle = workers.pids
    (row, ready) = rows(workers, 0, 0)
    share.scale(1, [Session(id="s", worker="w", epoch=1, state="loading", instance=row.instance), ready])
    assert workers.pids == [idle] != [loading]


def test_workers_of_others_count_and_those_that_go_do_not(share, workers):
    table = [elsewhere("a"), elsewhere("b", "sleeping"), elsewhere("c", "draining"), elsewhere("d", drain=1)]
    assert share.scale(3, [*table, elsewhere("e", "dead")]) == ""
    assert share.started == len(workers.pids) == 1
    leaving = rows(workers, 0)
    share.scale(2, [*table, *leaving])
    assert workers.pids == []
    share.scale(3, [*table, *leaving])  # it still looks ready, and is ours
    assert len(workers.pids) == 1


def test_others_that_are_too_many_are_told_of(share):
    assert "2 workers run elsewhere" in share.scale(1, [elsewhere("a"), elsewhere("b")])


def test_what_does_not_end_is_killed(share, workers, monkeypatch):
    deaf, start = lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(command, preexec_fn=deaf, **options))
    monkeypatch.setattr(workers, "_stop_timeout_s", 0)
    share.scale(1, [])
    workers.aim(0)
    (leaving,) = workers._leaving
    assert not leaving.has_ended
    workers.check()
    assert leaving.process.wait(30) == -signal.SIGKILL


def test_what_has_ended_is_forgotten(share, workers):
    share.scale(1, [])
    workers.aim(0)
    (leaving,) = workers._leaving
    leaving.process.wait(30)
    workers.check()
    assert workers.leaving_instances == set()


def test_a_worker_that_has_given_up_is_told_of_and_started_again(share, workers, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda _, **options: start_failing(options))
        share.scale(1, [])
    workers._workers[0].process.wait(30)
    with pytest.raises(WorkerStartError):
        workers.check()
    share.scale(1, [])
    assert workers.pids == []
    monkeypatch.setattr("driver.scalers.share.RETRY_S", 0.0)
    assert "1 workers of this machine have given up" in share.scale(1, [])
    assert len(workers.pids) == 1
    assert share.scale(1, []) == ""


def test_stopped_workers_are_left_alone(share, workers):
    workers.stop()
    assert share.scale(2, []) == ""
    assert workers.pids == []


def test_requests_in_hand_are_those_of_ready_workers():
    assert requests_in_hand([elsewhere("a", inhand_requests=2), elsewhere("b", "draining", inhand_requests=1)]) == {
        "a": 2
    }

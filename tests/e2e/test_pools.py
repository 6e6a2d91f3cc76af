"""Celery's own pools, and a model that is slow to load: ready means ready, and a killed child loads once."""

import os
import signal

import pytest

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import stays_true, wait_until

LOAD_S = 5  # above Celery's own patience with a new child, 4 s
OWN = {"STOKER_SERVED_MODEL_NAME": "of-the-pool"}
MODEL = OWN["STOKER_SERVED_MODEL_NAME"]


def row(cluster, name):
    return wait_until(lambda: cluster.session(name), what=f"a session of {name}")


def assert_no_work_while_loading(cluster, stoker_here, name):
    """Until the worker is ready its state is `loading`, and nothing is given to it."""
    stage = "loading nothing, as slowly as told"
    wait_until(lambda: (row(cluster, name).state, row(cluster, name).reason) == ("loading", stage), what=stage)
    status = stoker_here("status")  # a process of its own might start for longer than the model loads
    assert [line.split()[:2] for line in status.stdout.splitlines() if f"{name}@e2e" in line] == [
        [f"{name}@e2e", "loading:"]
    ]
    session = row(cluster, name)
    while session.state == "loading":
        assert session.batches == session.inhand_requests == 0
        session = row(cluster, name)
    assert session.state == "ready"


def test_a_killed_prefork_child_loads_again_once_and_gets_no_work_meanwhile(cluster, stoker_here):
    cluster.start_worker("c", settings=OWN | {"STOKER_POOL": "prefork", "STOKER_SIMULATED_LOAD_S": str(LOAD_S)})
    asked = requests(12, tokens=60)
    job = cluster.client.submit(asked, model=MODEL)
    assert_no_work_while_loading(cluster, stoker_here, "c")
    before = cluster.busy("c")
    supervised = cluster.workers["c"].child_pid
    assert before.pid != supervised, "the pool's child generates, not the process that Celery started"

    os.kill(before.pid, signal.SIGKILL)

    wait_until(lambda: row(cluster, "c").id != before.id, what="a new session")
    assert_no_work_while_loading(cluster, stoker_here, "c")
    after = row(cluster, "c")
    assert after.epoch == before.epoch + 1
    assert_each_done_once(cluster, job, asked)
    assert row(cluster, "c").id == after.id, "it was not loaded a third time"
    assert cluster.workers["c"].child_pid == supervised
    assert cluster.end_worker("c") == 0


def test_a_solo_worker_runs_batches_and_finishes_what_it_has_at_sigterm(cluster):
    worker = cluster.start_worker("c", settings=OWN | {"STOKER_POOL": "solo"})
    cluster.ready("c")
    first = cluster.client.submit(asked := requests(8, tokens=20), model=MODEL)
    assert_each_done_once(cluster, first, asked)
    job = cluster.client.submit(asked := requests(16, tokens=100), model=MODEL)
    cluster.busy("c")

    worker.send(signal.SIGTERM)

    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"c@e2e"}
    assert worker.wait() == 0


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_work_that_does_not_fit_into_the_drain_is_given_back(cluster, pool):
    worker = cluster.start_worker("c", settings=OWN | {"STOKER_POOL": pool, "STOKER_DRAIN_TIMEOUT": "0.3"})
    cluster.ready("c")
    job = cluster.client.submit(asked := requests(4, tokens=300), model=MODEL)
    cluster.busy("c")

    worker.send(signal.SIGTERM)
    cluster.start_worker("d", settings=OWN)

    assert worker.wait() == 0
    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"d@e2e"}


def test_a_child_killed_while_it_loads_is_started_again(cluster):
    worker = cluster.start_worker("c", settings=OWN | {"STOKER_SIMULATED_LOAD_S": "2"})
    wait_until(lambda: row(cluster, "c").state == "loading")
    os.kill(worker.child_pid, signal.SIGKILL)

    after = cluster.ready("c")[0]

    assert stays_true(lambda: row(cluster, "c").id == after.id, 1.0)

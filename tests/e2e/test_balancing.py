"""Work that a worker has not begun moves to those that have nothing to do."""

import signal

from broker.commands import Sleep, Wake
from driver.control import WorkerControl
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

SLOW = {"STOKER_SIMULATED_TOKENS_PER_S": "1", "STOKER_SIMULATED_SLOTS": "8", "STOKER_DRAIN_TIMEOUT": "0.3"}
OTHERS = ["a@e2e", "b@e2e"]


def test_what_waits_at_a_slow_worker_is_done_by_those_that_have_nothing_to_do(cluster):
    control = WorkerControl(cluster.store)
    control.ask(OTHERS, Sleep())
    wait_until(lambda: [cluster.session(name).state for name in "ab"] == ["sleeping"] * 2)
    slow = cluster.start_worker("c", settings=SLOW)
    cluster.ready("c")
    asked = requests(10, tokens=100)  # two more than run at once; each takes the slow one 100 s
    job = cluster.client.submit(asked)
    wait_until(lambda: cluster.session("c").waiting == 2, what="all are at the slow worker")

    control.ask(OTHERS, Wake())

    wait_until(lambda: job.progress().done == 2, what="the two that waited are done")
    wait_until(lambda: cluster.session("c").given_back == 2, what="a beat that says so")
    assert (cluster.session("c").running, cluster.session("c").waiting) == (8, 0)
    assert "c@e2e is asked to give back 2 requests" in cluster.driver_log
    slow.send(signal.SIGTERM)  # the rest would take too long
    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} <= set(OTHERS)
    assert cluster.store.queries.job(job.id).dropped == 0
    assert slow.wait() == 0

"""Work that a worker has not begun moves to one that has nothing to do."""

import signal

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

# Workers of the test's own: to those that were seen at work in another test, what runs would move, too.
OWN = {"STOKER_SERVED_MODEL_NAME": "of-the-slow"}
MODEL = OWN["STOKER_SERVED_MODEL_NAME"]
SLOW = {"STOKER_SIMULATED_TOKENS_PER_S": "1", "STOKER_SIMULATED_SLOTS": "8", "STOKER_DRAIN_TIMEOUT": "0.3"}


def test_what_waits_at_a_slow_worker_is_done_by_one_that_has_nothing_to_do(cluster):
    slow = cluster.start_worker("c", settings=OWN | SLOW)
    cluster.ready("c")
    said = len(cluster.driver_log)
    asked = requests(10, tokens=100)  # two more than run at once; each takes the slow one 100 s
    job = cluster.client.submit(asked, model=MODEL)
    wait_until(lambda: cluster.session("c").waiting == 2, what="all are at the slow worker")

    cluster.start_worker("d", settings=OWN)

    wait_until(lambda: job.progress().done == 2, what="the two that waited are done")
    wait_until(lambda: cluster.session("c").given_back == 2, what="a beat that says so")
    assert (cluster.session("c").running, cluster.session("c").waiting) == (8, 0)
    assert "c@e2e is asked to give back 2 requests" in cluster.driver_log[said:]
    slow.send(signal.SIGTERM)  # the rest would take too long
    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"d@e2e"}
    assert cluster.store.queries.job(job.id).dropped == 0
    assert slow.wait() == 0

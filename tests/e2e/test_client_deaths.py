"""A client that is killed while it submits, and one that is only slow; what the first submitted is generated."""

import signal

from broker.states import JobState
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import stays_true, wait_until

LIMIT = 4  # requests of one user
TOKENS = 50  # half a second
BLOCKED = f"""
from driver import Client
from tests.support.verdict import requests
Client().submit(requests(1000, {TOKENS}, about="many"), user="killed", block=True)
"""
SLOW = f"""
import sys, time
from pathlib import Path
from driver import Client
from tests.support.verdict import requests
first, second = requests(2, {TOKENS}, about="few")
feed = Client().open_job(user="slow")
feed.add([first])
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
feed.add_and_seal([second])
"""


def job_of(cluster, user):
    """Wait for the open job of a user, with all that its limit lets in."""
    found = lambda: next((job for job in cluster.store.queries.open_jobs() if job.user == user), None)  # noqa: E731
    return cluster.client.job(wait_until(found, what=f"the job of {user}").id)


def submitted(cluster, job):
    return cluster.store.queries.job(job.id).submitted


def test_a_killed_client_leaves_no_open_job_and_a_slow_one_keeps_its_own_through_an_outage(make_cluster, tmp_path):
    cluster = make_cluster({"STOKER_MAX_USER_PENDING_REQUESTS": str(LIMIT)})
    cluster.start_driver(fault="short_leases")
    cluster.start_worker("a")
    cluster.ready()
    killed = cluster.start_client(BLOCKED)
    slow = cluster.start_client(SLOW, str(tmp_path / "go on"), fault="renew_often")
    job, slow_job = job_of(cluster, "killed"), job_of(cluster, "slow")
    wait_until(lambda: submitted(cluster, job) >= LIMIT, what="a client that waits for room")

    killed.send(signal.SIGKILL)
    killed.wait()

    wait_until(lambda: job.state is not JobState.OPEN, what="the end of the job's lease")
    asked = requests(submitted(cluster, job), TOKENS, about="many")
    assert len(asked) < 1000
    assert_each_done_once(cluster, job, asked, client_lost=True)
    assert slow_job.state is JobState.OPEN
    assert f"job {job.id} is incomplete: its client is gone" in cluster.driver_log

    slow.send(signal.SIGSTOP)
    cluster.kill_server()
    cluster.restart_server()
    after = cluster.client.submit(requests(1, TOKENS, about="after"))  # the driver has gone once around since then
    assert_each_done_once(cluster, after, requests(1, TOKENS, about="after"))
    cluster.redis.hincrby(cluster.store.keys.job(slow_job.id).record, "touched_ms", -60_000)
    assert stays_true(lambda: slow_job.state is JobState.OPEN, 0.5)
    slow.send(signal.SIGCONT)
    (tmp_path / "go on").touch()
    assert slow.wait() == 0, slow.log
    assert_each_done_once(cluster, slow_job, requests(2, TOKENS, about="few"))

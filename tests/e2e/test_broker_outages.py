"""Redis that cuts connections, goes away for a while, or is killed: nothing is lost and nothing is done twice."""

import signal

from tests.support.cluster import HEARTBEAT_TIMEOUT_S
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import stays_true, wait_until

OUTAGE_S = 10


def cut_connections(cluster, at_least=1):
    """CLIENT KILL of everybody but ourselves, once so many are there: who was cut comes back at its own pace."""
    wait_until(lambda: len(cluster.redis.client_list()) > at_least, what=f"{at_least} connections to cut")
    for kind in ("normal", "pubsub"):
        cluster.redis.execute_command("CLIENT", "KILL", "TYPE", kind)


def session_ids(cluster):
    return {row.id for row in cluster.client.workers() if row.state == "ready"}


def test_cut_connections_cost_no_second_execution_and_no_worker(cluster):
    asked = requests(130, tokens=200)
    sessions, before = session_ids(cluster), cluster.settled()
    feed = cluster.client.open_job()
    job = cluster.client.job(feed.job_id)
    feed.add(asked[:50])  # more than one worker runs at once
    for _ in range(5):
        feed.add(asked[feed.submitted : feed.submitted + 16])  # that there is work, however long a cut takes
        cluster.busy_one(tokens=100)
        cut_connections(cluster, at_least=4)
    feed.seal()

    outputs = assert_each_done_once(cluster, job, asked)

    assert cluster.settled() - before == sum(len(output.token_ids) for output in outputs)
    assert cluster.store.queries.job(job.id).dropped == 0
    assert session_ids(cluster) == sessions


def test_workers_consume_again_after_many_cuts_while_idle(cluster):
    sessions = session_ids(cluster)
    for place in range(20):
        cut_connections(cluster)
        if place % 5 == 0:
            asked = requests(4, tokens=2, about=f"after cut {place}")
            assert_each_done_once(cluster, cluster.client.submit(asked), asked)

    assert session_ids(cluster) == sessions


def test_work_that_ends_while_redis_is_down_is_committed_when_it_is_back(cluster):
    asked = requests(48, tokens=300)  # more than one worker runs at once
    sessions, before = session_ids(cluster), cluster.settled()
    job = cluster.client.submit(asked)
    cluster.busy("a")
    cluster.busy("b")

    cluster.stop_server()
    alive = [worker.child_pid for worker in cluster.workers.values()]
    assert stays_true(lambda: [worker.child_pid for worker in cluster.workers.values()] == alive, OUTAGE_S)
    cluster.restart_server()

    outputs = assert_each_done_once(cluster, job, asked)
    assert session_ids(cluster) == sessions
    assert cluster.settled() - before == sum(len(output.token_ids) for output in outputs)


def test_after_an_outage_nobody_is_declared_dead_who_had_no_time_to_beat(cluster):
    sessions = session_ids(cluster)
    cluster.stop_server()
    for worker in cluster.workers.values():
        worker.send_both(signal.SIGSTOP)
    assert stays_true(lambda: True, HEARTBEAT_TIMEOUT_S)

    cluster.restart_server()

    wait_until(cluster.store.has_leader, what="a leader, who sees beats that are all too old")
    assert stays_true(lambda: session_ids(cluster) == sessions, HEARTBEAT_TIMEOUT_S / 3)
    for worker in cluster.workers.values():
        worker.send_both(signal.SIGCONT)
    cluster.settled()
    assert session_ids(cluster) == sessions


def test_a_killed_redis_that_fsyncs_always_loses_and_repeats_nothing(cluster):
    asked = [*requests(16, tokens=20, about="short"), *requests(32, tokens=300)]
    sessions, before = session_ids(cluster), cluster.settled()
    job = cluster.client.submit(asked)
    wait_until(lambda: job.progress().done >= 16, what="some outputs")

    cluster.kill_server()
    cluster.restart_server()

    outputs = assert_each_done_once(cluster, job, asked)
    assert session_ids(cluster) == sessions
    assert cluster.settled() - before == sum(len(output.token_ids) for output in outputs)


def test_a_client_waits_out_an_outage(cluster):
    asked = requests(8, tokens=150)
    job = cluster.client.submit(asked)
    outputs = iter(job.as_completed(60))
    cluster.busy_one()

    cluster.kill_server()
    cluster.restart_server()

    assert len(list(outputs)) == len(asked)
    assert_each_done_once(cluster, job, asked)

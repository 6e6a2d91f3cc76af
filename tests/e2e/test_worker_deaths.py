"""Workers that are killed, frozen or hung: their requests are done once, elsewhere or by their next session."""

import os
import signal

import psutil

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until


def test_requests_of_a_killed_child_are_done_at_once_by_the_other_worker(cluster):
    asked = requests(12, tokens=100)
    job = cluster.client.submit(asked)
    name = cluster.busy_one()
    before = cluster.session(name)
    said = len(cluster.driver_log)

    os.kill(cluster.workers[name].child_pid, signal.SIGKILL)

    outputs = assert_each_done_once(cluster, job, asked)
    assert "its process ended with SIGKILL" in cluster.driver_log[said:]
    assert "no heartbeat" not in cluster.driver_log[said:]
    assert {output.worker_id for output in outputs} >= {f"{cluster.other(name)}@e2e"}
    after = cluster.ready(name)[0]
    assert after.id != before.id
    assert after.epoch > before.epoch


def test_requests_of_a_wholly_killed_worker_are_done_long_before_the_heartbeat_timeout(make_cluster):
    cluster = make_cluster({"STOKER_HEARTBEAT_TIMEOUT": "60"})
    cluster.start_driver()
    for worker in ("a", "b"):
        cluster.start_worker(worker)
    cluster.ready()
    asked = requests(12, tokens=100)
    job = cluster.client.submit(asked)
    name = cluster.busy_one()
    wait_until(lambda: cluster.session(name).watch_age_s < 2, what="a supervisor that says that it is there")

    cluster.workers[name].send_both(signal.SIGKILL)

    assert_each_done_once(cluster, job, asked)
    assert f"{name}@e2e is lost: its connection is closed and no heartbeat for" in cluster.driver_log
    assert cluster.session(name) is None
    assert cluster.session(cluster.other(name)).state == "ready"


def test_a_worker_that_only_loses_its_connection_is_not_declared_dead(cluster):
    asked = requests(36, tokens=200)
    before, said = {row.id for row in cluster.client.workers()}, len(cluster.driver_log)
    feed = cluster.client.open_job()
    job = cluster.client.job(feed.job_id)
    for _ in range(3):
        feed.add(asked[feed.submitted : feed.submitted + 12])  # that there is work, however long a cut takes
        name = cluster.busy_one(tokens=10)
        connection = cluster.session(name).connection
        cluster.redis.client_kill_filter(_id=connection.rpartition(":")[2])
        wait_until(
            lambda name=name, connection=connection: cluster.session(name).connection != connection,
            what="a new connection",
        )
    feed.seal()

    assert_each_done_once(cluster, job, asked)
    assert {row.id for row in cluster.client.workers()} == before
    assert cluster.store.queries.job(job.id).dropped == 0
    assert "is lost" not in cluster.driver_log[said:]


def test_a_child_whose_supervisor_was_killed_ends_and_its_name_is_free(cluster):
    before = cluster.session("a")
    child = cluster.workers["a"].child_pid

    cluster.workers["a"].send(signal.SIGKILL)

    assert cluster.workers["a"].wait() == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(child), what="the end of the child")
    cluster.start_worker("a")
    assert cluster.ready("a")[0].epoch > before.epoch


def test_a_worker_that_was_frozen_past_its_lease_commits_nothing_that_counts(cluster):
    asked = requests(16, tokens=150)
    job = cluster.client.submit(asked)
    name = cluster.busy_one()
    before, worker = cluster.session(name), cluster.workers[name]
    said = len(cluster.driver_log)
    worker.send_both(signal.SIGSTOP)
    frozen = worker.child_pid
    outputs = assert_each_done_once(cluster, job, asked)
    assert f"{name}@e2e is lost: no heartbeat for" in cluster.driver_log[said:]  # it is connected all the time
    elsewhere = cluster.client.submit(more := requests(8, tokens=200, about="later"))
    cluster.busy(cluster.other(name))

    worker.send_both(signal.SIGCONT)

    wait_until(lambda: worker.child_pid != frozen, what="a new child")
    assert "this session was declared dead" in worker.log
    assert cluster.ready(name)[0].id != before.id
    assert assert_each_done_once(cluster, job, asked) == outputs
    assert_each_done_once(cluster, elsewhere, more)


def test_a_child_that_stays_frozen_is_killed_and_replaced(cluster):
    asked = requests(16, tokens=100)
    job = cluster.client.submit(asked)
    name = cluster.busy_one()
    before = cluster.session(name)

    os.kill(cluster.workers[name].child_pid, signal.SIGSTOP)

    assert_each_done_once(cluster, job, asked)
    assert "does not end by itself; killing it" in wait_until(
        lambda: (session := cluster.session(name)) and session.id != before.id and cluster.workers[name].log
    )


def test_a_request_that_hangs_the_engine_is_given_up_and_no_other(cluster):
    asked = requests(12, tokens=60)
    asked[5] = requests(1, tokens=60, about="<<hang>>")[0]
    said = len(cluster.driver_log)
    job = cluster.client.submit(asked)

    outputs = assert_each_done_once(cluster, job, asked, errors={5: "worker_crash"})

    assert "its worker died 3 times while running it, the last time alone" in outputs[5].error.message
    assert "no engine step for" in outputs[5].error.message
    assert cluster.driver_log[said:].count("is hung: no engine step") == 3

"""Messages that are lost, doubled, stale, out of order or nonsense: a message is only a wake-up."""

import os
import signal
import uuid

import pytest

from broker.celery_app import create_app, send_batch, worker_queue
from broker.topology import GENERATE_BATCH
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

OWN_MODEL = "of-the-broken-worker"


@pytest.fixture
def celery_app(cluster):
    app = create_app(cluster.store.settings)
    yield app
    app.close()


def held_batches(cluster, name):
    """The batches that a worker has claimed."""
    batches = cluster.store.queries.batches(cluster.session(name).id)
    return [batch for batch in batches if batch.state == "claimed"]


def holder(cluster):
    """A worker that has claimed batches, and these: which of the two gets a small job is the driver's choice."""
    return wait_until(
        lambda: next(((name, held) for name in ("a", "b") if (held := held_batches(cluster, name))), None),
        what="a worker that holds a batch",
    )


def test_a_batch_sent_again_while_it_runs_is_run_once(cluster, celery_app):
    asked = requests(16, tokens=150)
    before = cluster.settled()
    job = cluster.client.submit(asked)
    name, held = holder(cluster)
    for batch in held * 10:
        send_batch(celery_app, f"{name}@e2e", batch.id, batch.job)

    outputs = assert_each_done_once(cluster, job, asked)

    assert cluster.settled() - before == sum(len(output.token_ids) for output in outputs)
    assert cluster.store.queries.job(job.id).dropped == 0


def test_old_batches_of_a_dead_session_are_refused_by_everyone(cluster, celery_app):
    asked = requests(8, tokens=100)
    job = cluster.client.submit(asked)
    name, held = holder(cluster)
    os.kill(cluster.workers[name].child_pid, signal.SIGKILL)
    wait_until(lambda: (row := cluster.session(name)) and row.state == "ready" and row.id != held[0].session)

    for batch in reversed(held * 3):
        for worker in ("a@e2e", "b@e2e"):
            send_batch(celery_app, worker, batch.id, batch.job)

    assert_each_done_once(cluster, job, asked)
    assert cluster.store.queries.job(job.id).dropped == 0


def test_a_batch_sent_to_the_wrong_worker_or_with_the_wrong_job_changes_nothing(cluster, celery_app):
    asked = requests(8, tokens=150)
    job = cluster.client.submit(asked)
    name, (batch, *_) = holder(cluster)
    wrong_worker = f"{cluster.other(name)}@e2e"
    other = cluster.client.submit(more := requests(4, tokens=100, about="other"))

    send_batch(celery_app, wrong_worker, batch.id, batch.job)
    for wrong_job in (other.id, str(uuid.uuid4()), ""):
        for worker in ("a@e2e", "b@e2e"):
            celery_app.send_task(GENERATE_BATCH, args=(batch.id, wrong_job), queue=worker_queue(worker))

    assert_each_done_once(cluster, job, asked)
    assert_each_done_once(cluster, other, more)


def test_a_batch_whose_first_message_names_the_wrong_job_is_not_lost(cluster, celery_app):
    cluster.end_drivers()
    broken = cluster.start_driver(fault="die_untold")
    job = cluster.client.submit(asked := requests(4, tokens=20))
    broken.wait()
    rows = cluster.client.workers()
    worker, batch = next((row.worker, batch) for row in rows for batch in cluster.store.queries.batches(row.id))

    celery_app.send_task(GENERATE_BATCH, args=(batch.id, str(uuid.uuid4())), queue=worker_queue(worker))
    send_batch(celery_app, worker, batch.id, batch.job)
    cluster.start_driver()

    assert_each_done_once(cluster, job, asked)


def test_nonsense_is_acknowledged_and_harms_nobody(cluster, celery_app):
    sessions = {row.id for row in cluster.client.workers()}
    job = cluster.client.submit(asked := requests(8, tokens=100))
    for args in [("no such batch", "no such job"), ("", ""), (None, None), ([], {}), (1, 2), ("x" * 10_000, "é\n")]:
        celery_app.send_task(GENERATE_BATCH, args=args, queue=worker_queue("a@e2e"))
    celery_app.send_task(GENERATE_BATCH, args=("too few",), queue=worker_queue("a@e2e"))
    celery_app.send_task("stoker.no_such_task", args=(), queue=worker_queue("a@e2e"))

    assert_each_done_once(cluster, job, asked)
    last = cluster.client.submit(more := requests(8, tokens=5, about="afterwards"))
    assert_each_done_once(cluster, last, more)
    cluster.assert_clean()
    cluster.settled()  # their hearts beat on
    assert {row.id for row in cluster.client.workers()} == sessions
    assert "waiting: Redis" not in cluster.workers["a"].log.partition("no such batch")[2]


def test_a_message_that_a_worker_took_and_lost_is_sent_again(cluster):
    cluster.start_worker("c", fault="lose_first_message", settings={"STOKER_SERVED_MODEL_NAME": OWN_MODEL})
    before = cluster.ready("c")[0]
    asked = requests(4, tokens=20)

    job = cluster.client.submit(asked, model=OWN_MODEL)
    wait_until(lambda: job.progress().running == len(asked) and not cluster.redis.exists("gpu.c@e2e"))

    assert_each_done_once(cluster, job, asked)
    assert cluster.session("c").id == before.id


def test_a_worker_killed_with_a_message_in_hand_loses_no_request(cluster, tmp_path):
    mark = tmp_path / "between"
    settings = {"STOKER_SERVED_MODEL_NAME": OWN_MODEL, "E2E_MARK_FILE": str(mark)}
    cluster.start_worker("c", fault="stop_with_a_message_in_hand", settings=settings)
    cluster.ready("c")
    asked = requests(4, tokens=20)
    job = cluster.client.submit(asked, model=OWN_MODEL)
    wait_until(mark.exists)
    assert not [key for key in cluster.unfinished() if "gpu." in key or "unacked" in key], "the message is nowhere"

    cluster.workers["c"].send_both(signal.SIGKILL)
    cluster.start_worker("d", settings={"STOKER_SERVED_MODEL_NAME": OWN_MODEL})

    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"d@e2e"}


def test_wiping_the_binding_tables_of_kombu_has_no_effect(cluster):
    asked = requests(32, tokens=100)
    job = cluster.client.submit(asked)
    cluster.busy_one()
    wiped = [key for key in cluster.redis.scan_iter("_kombu.binding*", count=1000) if cluster.redis.delete(key)]

    assert wiped
    assert_each_done_once(cluster, job, asked)
    assert_each_done_once(cluster, cluster.client.submit(asked), asked)

import pytest
from celery.result import AsyncResult

from broker.records import Load
from broker.states import JobState
from driver.ending import end_pending
from driver.reconcile import (
    ABANDONED_AFTER_MS,
    FORGOTTEN_AFTER_MS,
    UNCLAIMED_AFTER_MS,
    UNCLOSED_AFTER_MS,
    Reconciler,
)
from tests.support.celery_queue import messages
from tests.support.stage import COST


@pytest.fixture
def reconciler(store, app):
    return Reconciler(store, app)


@pytest.fixture
def reconcile(stage, reconciler):
    """One pass, so many milliseconds from now."""

    def run(after_ms=0, **options):
        now_ms = stage.queries.server_time_ms() + after_ms
        reconciler.reconcile(stage.sessions.table(), now_ms, **options)

    return run


@pytest.fixture
def end_stopped(stage, reconciler):
    def run(after_ms=0):
        reconciler.end_stopped(stage.queries.stopping_jobs(stage.queries.server_time_ms() + after_ms))

    return run


# Messages that were never sent, or lost


def test_a_batch_that_nobody_claims_is_sent_again(stage, reconcile):
    job = stage.job(1)
    batch = stage.batch(stage.worker(), job, [0], claimed=False)
    reconcile(UNCLAIMED_AFTER_MS)
    assert messages(stage.redis) == [(batch, batch, job)]


def test_a_young_batch_is_not(stage, reconcile):
    stage.batch(stage.worker(), stage.job(1), [0], claimed=False)
    reconcile(UNCLAIMED_AFTER_MS - 1000)
    assert messages(stage.redis) == []


def test_a_claimed_batch_is_not_while_the_engine_works(stage, reconcile):
    stage.batch(stage.worker(running=1), stage.job(1), [0])
    reconcile(FORGOTTEN_AFTER_MS - 1000)
    assert messages(stage.redis) == []


@pytest.mark.parametrize(("running", "after_ms"), [(0, UNCLAIMED_AFTER_MS), (1, FORGOTTEN_AFTER_MS)])
def test_what_a_worker_has_done_and_redis_has_lost_runs_again(stage, reconcile, running, after_ms):
    session, job = stage.worker(running=running), stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.commit(batch, job, session, [0])
    lose = stage.lose_changes()
    stage.commit(batch, job, session, [1])
    assert stage.ledger.finish(batch, session) == 0
    lose()
    reconcile(after_ms)
    assert messages(stage.redis) == [(batch, batch, job)]
    assert [item.index for item in stage.ledger.claim(batch, job, session).requests] == [1]


def test_a_batch_is_not_sent_at_every_pass(stage, reconcile):
    stage.batch(stage.worker(), stage.job(1), [0], claimed=False)
    for after_ms in (UNCLAIMED_AFTER_MS, UNCLAIMED_AFTER_MS + 1000, 2 * UNCLAIMED_AFTER_MS - 1000):
        reconcile(after_ms)
    assert len(messages(stage.redis)) == 1
    reconcile(2 * UNCLAIMED_AFTER_MS + 1000)
    assert len(messages(stage.redis)) == 2


def test_it_is_sent_to_its_own_worker(stage, reconcile):
    job = stage.job(2)
    first = stage.batch(stage.worker("gpu0@host"), job, [0], claimed=False)
    second = stage.batch(stage.worker("gpu1@host"), job, [1], claimed=False)
    reconcile(UNCLAIMED_AFTER_MS)
    assert [batch for _, batch, _ in messages(stage.redis, "gpu0@host")] == [first]
    assert [batch for _, batch, _ in messages(stage.redis, "gpu1@host")] == [second]


# Results that were never stored


def test_a_complete_job_that_nobody_closed_is_closed(stage, app, reconcile):
    job = stage.finished_job(2)
    reconcile(UNCLOSED_AFTER_MS)
    assert stage.queries.closing_jobs() == []
    assert [item["index"] for item in AsyncResult(job, app=app).get(timeout=60)] == [0, 1]


def test_its_worker_is_given_the_time_to_close_it(stage, reconcile):
    stage.finished_job()
    reconcile(UNCLOSED_AFTER_MS - 1000)
    assert len(stage.queries.closing_jobs()) == 1


def test_a_job_that_runs_is_not_closed(stage, reconcile):
    job = stage.job(1)
    reconcile(10 * UNCLOSED_AFTER_MS)
    assert [record.id for record in stage.queries.open_jobs()] == [job]


# Jobs whose client is gone


def test_an_abandoned_open_job_is_sealed_as_it_is(stage, reconcile):
    job = stage.job(2, last=False)
    reconcile(ABANDONED_AFTER_MS + 1000)
    assert stage.queries.job(job).state == JobState.RUNNING
    assert stage.queries.job(job).client_lost
    assert stage.pending(job) == [0, 1]


def test_an_abandoned_job_whose_outputs_are_all_there_is_done(stage, reconcile):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    reconcile(ABANDONED_AFTER_MS + 1000)
    assert stage.queries.job(job).state == JobState.DONE


def test_a_client_that_was_heard_of_keeps_its_job_open(stage, reconcile):
    job = stage.job(1, last=False)
    reconcile(ABANDONED_AFTER_MS - 1000)
    assert stage.queries.job(job).state == JobState.OPEN


def test_while_silence_means_nothing_no_client_is_taken_for_gone(stage, reconcile):
    jobs = [stage.job(1, last=False), stage.job(2, last=False, announced=(8, 8 * COST))]
    reconcile(2 * ABANDONED_AFTER_MS, trust_silence=False)
    assert [stage.queries.job(job).state for job in jobs] == [JobState.OPEN] * 2


def test_a_job_that_was_announced_and_stops_coming_is_cancelled_and_its_room_is_free(stage, reconcile):
    job = stage.job(2, last=False, announced=(8, 8 * COST))
    reconcile(ABANDONED_AFTER_MS - 1000)
    assert stage.queries.load().requests == 8
    reconcile(ABANDONED_AFTER_MS + 1000)
    assert stage.queries.job(job).cancelled
    assert stage.queries.load().requests == 2
    end_pending(stage.store, job, "cancelled", "stop")
    assert stage.queries.load() == Load()


def test_a_record_that_cannot_be_read_hides_no_abandoned_job(stage, reconcile, monkeypatch):
    monkeypatch.setattr("driver.reconcile.JOBS_PER_PASS", 2)
    stage.redis.hset(stage.keys.job(stage.job(1)).record, "done", "x")
    jobs = [stage.job(1, last=False) for _ in range(4)]
    for _ in range(3):
        reconcile(ABANDONED_AFTER_MS + 1000)
    assert {stage.queries.job(job).state for job in jobs} == {JobState.RUNNING}


# Jobs that must not run any more


def codes(stage, job):
    return {item.index: item.error and item.error.code for item in stage.results(job)}


def test_what_waits_in_a_cancelled_job_is_ended(stage, end_stopped):
    job = stage.job(3)
    stage.batch(stage.worker(), job, [1])
    stage.ledger.cancel(job)
    end_stopped()
    assert codes(stage, job) == {0: "cancelled", 2: "cancelled"}
    assert stage.pending(job) == []


def test_what_waits_past_the_deadline_is_ended(stage, end_stopped):
    job = stage.job(2, deadline_s=60)
    stage.batch(stage.worker(), job, [0])
    end_stopped(after_ms=60_000)
    assert codes(stage, job) == {1: "deadline_exceeded"}


def test_before_the_deadline_nothing_is(stage, end_stopped):
    job = stage.job(1, deadline_s=60)
    end_stopped(after_ms=59_000)
    assert stage.pending(job) == [0]


def test_without_a_deadline_nothing_ever_is(stage, end_stopped):
    job = stage.job(1)
    end_stopped(after_ms=10**12)
    assert stage.pending(job) == [0]


def test_a_cancellation_counts_before_a_deadline(stage, end_stopped):
    job = stage.job(1, deadline_s=60)
    stage.ledger.cancel(job)
    end_stopped(after_ms=60_000)
    assert codes(stage, job) == {0: "cancelled"}


def test_an_open_job_past_its_deadline_stays_open_for_its_client(stage, end_stopped):
    job = stage.job(1, last=False, deadline_s=60)
    end_stopped(after_ms=60_000)
    assert codes(stage, job) == {0: "deadline_exceeded"}
    assert stage.queries.job(job).state == JobState.OPEN


def test_ending_twice_gives_one_output_each(stage, end_stopped):
    job = stage.job(2)
    stage.ledger.cancel(job)
    end_stopped()
    end_stopped()
    assert len(stage.results(job)) == 2

import pytest

from broker.errors import JobNotFoundError
from broker.states import JobState
from driver.ending import end_pending
from tests.support.racing import race


def test_a_job_is_marked(stage):
    job = stage.job(2)
    assert stage.ledger.cancel(job)
    record = stage.queries.job(job)
    assert (record.cancelled, record.state) == (True, JobState.RUNNING)
    assert stage.queries.cancelled([job, stage.job(1), "nothing"]) == [True, False, False]


def test_cancelling_twice_is_harmless(stage):
    job = stage.job(2)
    assert stage.ledger.cancel(job)
    assert stage.ledger.cancel(job)
    assert stage.queries.job(job).state == JobState.RUNNING


def test_a_done_job_cannot_be_cancelled(stage):
    job = stage.finished_job()
    assert not stage.ledger.cancel(job)
    assert not stage.queries.job(job).cancelled


def test_an_unknown_job_is_an_error(stage):
    with pytest.raises(JobNotFoundError):
        stage.ledger.cancel("nothing")
    assert not stage.has_key(stage.keys.job("nothing").record)


def test_an_open_job_is_sealed(stage):
    job = stage.job(1, last=False)
    stage.ledger.cancel(job)
    with pytest.raises(JobNotFoundError, match="already sealed"):
        stage.ledger.submit(job, "", [], offset=2, last=False)
    assert stage.commit("", job, "", [0]).job_done


def test_an_open_job_whose_outputs_are_all_there_is_done(stage):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    assert stage.ledger.cancel(job)
    record = stage.queries.job(job)
    assert record.state == JobState.DONE
    assert stage.queries.closing_jobs() == [(job, record.finished_ms)]


def test_what_waits_gets_an_output_and_what_runs_gets_its_own(stage):
    session, job = stage.worker(), stage.job(4)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.cancel(job)
    assert end_pending(stage.store, job, "cancelled", "the job was cancelled") == 2
    assert sorted((item.index, item.error.code) for item in stage.results(job)) == [(2, "cancelled"), (3, "cancelled")]
    assert stage.commit(batch, job, session, [0, 1]).job_done
    assert stage.queries.job(job).failed == 2


def test_ending_what_waits_twice_ends_nothing_twice(stage):
    job = stage.job(600)  # more than one page
    stage.ledger.cancel(job)
    assert end_pending(stage.store, job, "cancelled", "stop") == 600
    assert end_pending(stage.store, job, "cancelled", "stop") == 0
    assert end_pending(stage.store, "nothing", "cancelled", "stop") == 0
    assert stage.queries.job(job).state == JobState.DONE


def test_what_comes_back_from_a_dead_worker_is_ended_at_the_next_look(stage):
    session, job = stage.worker(), stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.cancel(job)
    end_pending(stage.store, job, "cancelled", "stop")
    stage.kill(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert end_pending(stage.store, job, "cancelled", "stop") == 2
    assert stage.queries.job(job).state == JobState.DONE


def test_two_that_end_the_same_requests_at_once_give_one_output_each(stage):
    job = stage.job(100)
    stage.ledger.cancel(job)
    assert sum(race(*[lambda: end_pending(stage.store, job, "cancelled", "stop")] * 4)) == 100
    assert sorted(item.index for item in stage.results(job)) == list(range(100))

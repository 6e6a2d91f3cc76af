"""The driver ends a job whose client is gone, and from then on everybody can tell that something may be missing."""

import pytest

from broker.errors import JobNotFoundError
from broker.states import JobState
from tests.support.stage import request


def touched_ms(stage, job):
    return stage.queries.job(job).touched_ms


def abandon(stage, job):
    return stage.ledger.abandon(job, touched_ms(stage, job))


def test_what_was_submitted_is_all_there_will_be_and_the_record_says_so(stage):
    job = stage.job(2, last=False)
    stage.wakes()
    assert abandon(stage, job)
    record = stage.queries.job(job)
    assert (record.state, record.client_lost, record.submitted) == (JobState.RUNNING, True, 2)
    assert stage.pending(job) == [0, 1]
    assert stage.wakes()
    with pytest.raises(JobNotFoundError, match="already sealed"):
        stage.ledger.submit(job, "", [request()], offset=2, last=True)


def test_a_second_call_does_nothing(stage):
    job = stage.job(1, last=False)
    heard_ms = touched_ms(stage, job)
    assert [stage.ledger.abandon(job, heard_ms) for _ in range(2)] == [True, False]


def test_a_job_whose_outputs_are_all_there_is_done(stage):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    assert abandon(stage, job)
    assert stage.queries.job(job).state == JobState.DONE
    assert [job_id for job_id, _ in stage.queries.closing_jobs()] == [job]


def test_a_client_that_was_heard_of_meanwhile_keeps_its_job(stage):
    job = stage.job(1, last=False)
    stage.age_field(stage.keys.job(job).record, "touched_ms", 100)
    judged_ms = touched_ms(stage, job)
    stage.ledger.renew(job)
    assert not stage.ledger.abandon(job, judged_ms)
    assert stage.queries.job(job).state == JobState.OPEN


@pytest.mark.parametrize("sealed", [True, False])
def test_a_job_that_its_client_has_sealed_or_that_was_cancelled_is_whole(stage, sealed):
    job = stage.job(1, last=sealed)
    if not sealed:
        stage.ledger.cancel(job)
    assert not abandon(stage, job)
    assert not stage.queries.job(job).client_lost


def test_nobody_s_job_is_not_made(stage):
    assert not stage.ledger.abandon("nobody", 0)
    assert not stage.has_key(stage.keys.job("nobody").record)


@pytest.mark.parametrize("done", [False, True])
def test_a_client_that_comes_back_and_seals_what_is_all_there_takes_the_note_away(stage, done):
    job = stage.job(2, last=False)
    abandon(stage, job)
    if done:
        stage.commit("", job, "", [0, 1])
        stage.ledger.close(job, 600)
    for _ in range(2):
        assert stage.ledger.submit(job, "", [], offset=2, last=True) == 2
        assert not stage.queries.job(job).client_lost
    assert [job_id for job_id, _ in stage.queries.closing_jobs()] == [job] * done  # for another Celery result
    assert stage.ledger.close(job, 600) == done


@pytest.mark.parametrize(("offset", "last"), [(0, True), (1, False)])
def test_one_that_only_sends_again_what_is_there_does_not(stage, offset, last):
    job = stage.job(2, last=False)
    abandon(stage, job)
    assert stage.ledger.submit(job, "", [request()], offset=offset, last=last) == 2
    assert stage.queries.job(job).client_lost

import pytest

from broker.deltas import TextDelta
from broker.ledger import ClientReturnedError
from broker.states import JobState
from tests.support.racing import race


def test_a_closed_job_can_be_read_until_it_expires(stage):
    job = stage.finished_job(2)
    assert stage.ledger.close(job, 60)
    assert stage.queries.job(job).state == JobState.DONE
    assert len(stage.results(job)) == 2
    assert stage.queries.open_jobs() == []
    assert stage.queries.closing_jobs() == []


def test_every_key_of_a_closed_job_has_an_end(stage):
    session, job = stage.worker(), stage.job(3)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.checkpoint(batch, job, session, {0: (1,)})
    stage.ledger.publish(batch, job, session, [TextDelta(index=1, offset=0, text="x")])
    stage.ledger.release(batch, job, session, count_attempt=True, indices=[0])
    stage.commit("", job, "", [2])
    # Closing is for complete jobs; here it must end the keys of one that still has all of them.
    keys = stage.keys.job(job)
    for key in keys.all():
        stage.redis.set(key, "", nx=True)  # this job shares nothing
    stage.ledger.close(job, 60)
    assert not stage.has_key(keys.deltas)
    assert all(0 < stage.redis.ttl(key) <= 60 for key in keys.all() if key != keys.deltas)
    stage.redis.delete(stage.keys.waiting)


def test_only_the_first_call_closes(stage):
    job = stage.finished_job()
    assert stage.ledger.close(job, 60)
    assert not stage.ledger.close(job, 60)


def test_of_many_at_once_one_closes(stage):
    job = stage.finished_job()
    assert sorted(race(*[lambda: stage.ledger.close(job, 60)] * 4)) == [False, False, False, True]


def test_closing_an_unknown_job_leaves_nothing(stage):
    stage.redis.zadd(stage.keys.closing, {"nothing": 1})
    stage.redis.zadd(stage.keys.jobs, {"nothing": 1})
    assert stage.ledger.close("nothing", 60)
    assert stage.queries.open_jobs() == []
    assert stage.queries.closing_jobs() == []


def test_a_job_is_not_closed_with_a_result_that_says_that_a_client_is_lost_when_it_is_back(stage):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    assert stage.ledger.abandon(job, stage.queries.job(job).touched_ms)
    stage.ledger.submit(job, "", [], offset=1, last=True)
    before = stage.queries.closing_jobs()
    with pytest.raises(ClientReturnedError):
        stage.ledger.close(job, 60, client_lost=True)
    assert stage.queries.closing_jobs() == before != []
    assert stage.redis.ttl(stage.keys.job(job).record) == -1
    assert stage.ledger.close(job, 60)

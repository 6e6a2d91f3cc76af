import pytest

from tests.support.racing import race
from tests.support.stage import COST, request


@pytest.fixture
def session(stage):
    return stage.worker()


def test_a_worker_gets_the_requests_in_order(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [2, 0, 1], claimed=False)
    claimed = stage.ledger.claim(batch, job, session)
    assert [(item.index, item.request, item.attempts, item.generated) for item in claimed.requests] == [
        (index, request(), 0, ()) for index in range(3)
    ]
    assert (claimed.cancelled, claimed.deadline_s) == (False, None)


def test_a_claim_marks_the_batch(stage, session):
    batch = stage.batch(session, stage.job(), [0])
    assert [(item.id, item.state) for item in stage.queries.batches(session)] == [(batch, "claimed")]


def test_a_claim_tells_the_jobs_priority(stage, session):
    job = stage.job(1, priority=-7)
    batch = stage.batch(session, job, [0], claimed=False)
    assert stage.ledger.claim(batch, job, session).priority == -7


def test_claiming_twice_gives_the_same(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    assert stage.ledger.claim(batch, job, session) == stage.ledger.claim(batch, job, session)
    assert stage.in_hand(session) == (2, 2 * COST, 0)


def test_another_session_is_refused(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    other = stage.worker("gpu1@host")
    assert stage.ledger.claim(batch, job, other) is None
    assert stage.queries.batches(session)[0].state == "assigned"


def test_a_dead_session_is_refused(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.kill(session)
    assert stage.ledger.claim(batch, job, session) is None


def test_the_next_session_of_the_same_worker_is_refused(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.kill(session)
    successor = stage.worker()
    assert stage.ledger.claim(batch, job, successor) is None


def test_a_message_that_names_another_job_is_refused(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    assert stage.ledger.claim(batch, stage.job(1), session) is None
    assert stage.assigned(job) == {0: batch}
    assert stage.in_hand(session) == (1, COST, 0)


def test_a_batch_that_is_gone_gives_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.commit(batch, job, session, [0])
    stage.ledger.finish(batch, session)
    assert stage.ledger.claim(batch, job, session) is None


def test_a_released_batch_gives_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert stage.ledger.claim(batch, job, session) is None
    assert stage.pending(job) == [0]


def test_claimed_again_after_some_outputs_only_the_rest_is_given(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    stage.commit(batch, job, session, [1])
    assert [item.index for item in stage.ledger.claim(batch, job, session).requests] == [0, 2]
    assert stage.in_hand(session) == (2, 2 * COST, 0)


def test_what_another_has_finished_meanwhile_is_dropped_from_the_batch(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1], claimed=False)
    stage.commit("", job, "", [0])
    assert [item.index for item in stage.ledger.claim(batch, job, session).requests] == [1]
    assert stage.queries.batch_indices(batch) == (1,)
    assert stage.in_hand(session) == (1, COST, 0)


def test_a_batch_of_a_job_that_has_expired_is_empty_and_ends(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.redis.delete(*stage.keys.job(job).all())
    stage.redis.zrem(stage.keys.jobs, job)
    assert stage.ledger.claim(batch, job, session).requests == ()
    assert stage.ledger.finish(batch, session) == 0
    assert stage.in_hand(session) == (0, 0, 0)


def test_attempts_and_saved_tokens_come_with_the_request(stage, session):
    job = stage.job(1)
    first = stage.batch(session, job, [0])
    stage.ledger.checkpoint(first, job, session, {0: (5, 6)})
    stage.ledger.release(first, job, session, count_attempt=True)
    batch = stage.batch(session, job, [0], claimed=False)
    (item,) = stage.ledger.claim(batch, job, session).requests
    assert (item.attempts, item.generated) == (1, (5, 6))


def test_a_cancelled_job_says_so(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.ledger.cancel(job)
    assert stage.ledger.claim(batch, job, session).cancelled


def test_the_deadline_is_what_is_left(stage, session):
    job = stage.job(1, deadline_s=60)
    batch = stage.batch(session, job, [0], claimed=False)
    assert 50 < stage.ledger.claim(batch, job, session).deadline_s <= 60


def test_a_deadline_that_has_passed_is_negative(stage, session):
    job = stage.job(1, deadline_s=60)
    batch = stage.batch(session, job, [0], claimed=False)
    stage.age_field(stage.keys.job(job).record, "deadline_ms", 100)
    assert -50 < stage.ledger.claim(batch, job, session).deadline_s <= -40


def test_a_request_that_does_not_decode_is_named_and_keeps_no_other_back(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1], claimed=False)
    stage.redis.hset(stage.keys.job(job).requests, 0, b"\x81\xa1x\x01")
    claimed = stage.ledger.claim(batch, job, session)
    assert [item.index for item in claimed.requests] == [1]
    ((index, reason),) = claimed.unreadable
    assert index == 0
    assert reason.startswith("not a valid Request")


def test_of_many_messages_for_one_batch_only_the_owner_gets_it(stage, session):
    job = stage.job(2)
    others = [stage.worker(f"gpu{i}@host") for i in range(1, 4)]
    batch = stage.batch(session, job, [0, 1], claimed=False)
    replies = race(*(lambda name=name: stage.ledger.claim(batch, job, name) for name in [*others, session]))
    assert [reply is not None for reply in replies] == [False, False, False, True]

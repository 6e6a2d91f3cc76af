import pytest

from broker.topology import queue_name
from tests.support.racing import race


@pytest.fixture
def session(stage):
    return stage.worker()


def test_a_dead_session_that_holds_nothing_is_removed(stage, session):
    stage.kill(session)
    assert stage.sessions.forget(stage.session(session))
    assert stage.sessions.table() == []
    assert not stage.has_key(stage.keys.session(session).record)


def test_a_live_session_is_not(stage, session):
    assert not stage.sessions.forget(stage.session(session))
    assert stage.session(session).state == "ready"


def test_a_session_that_holds_batches_is_not(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    assert not stage.sessions.forget(stage.session(session))
    assert stage.assigned(job) == {0: batch}
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert stage.sessions.forget(stage.session(session))


def test_forgetting_twice_is_harmless(stage, session):
    stage.kill(session)
    row = stage.session(session)
    assert stage.sessions.forget(row)
    assert stage.sessions.forget(row)


def test_what_celery_kept_for_it_goes_too(stage, session):
    keys = stage.keys.session(session)
    stage.redis.hset(keys.unacked, "tag", "message")
    stage.redis.zadd(keys.unacked_index, {"tag": 1})
    stage.redis.set(keys.unacked_mutex, "1", ex=10)
    stage.redis.lpush(queue_name("gpu0@host"), "message")
    stage.kill(session)
    stage.sessions.forget(stage.session(session))
    left = (keys.unacked, keys.unacked_index, keys.unacked_mutex, queue_name("gpu0@host"))
    assert not any(stage.has_key(key) for key in left)


def test_the_queue_stays_for_a_newer_session_of_the_name(stage, session):
    stage.redis.lpush(queue_name("gpu0@host"), "message")
    stage.kill(session)
    successor = stage.worker()
    stage.sessions.forget(stage.session(session))
    assert stage.has_key(queue_name("gpu0@host"))
    assert stage.session(successor).state == "ready"


def test_a_session_without_a_record_is_taken_out_of_the_table(stage, session):
    stage.kill(session)
    row = stage.session(session)
    stage.redis.delete(stage.keys.session(session).record)
    assert stage.sessions.forget(row)
    assert stage.redis.zcard(stage.keys.sessions) == 0


def test_two_that_forget_at_once_agree(stage, session):
    stage.kill(session)
    row = stage.session(session)
    assert race(*[lambda: stage.sessions.forget(row)] * 3) == [True] * 3
    assert stage.sessions.table() == []


def test_what_a_late_process_wrote_for_a_forgotten_session_is_swept(stage):
    session, alive = stage.worker(), stage.worker("gpu1@host")
    stage.kill(session)
    assert stage.sessions.forget(stage.session(session))
    late, own = stage.keys.session(session).unacked, stage.keys.session(alive).unacked
    stage.redis.hset(late, "tag", "message")
    stage.redis.hset(own, "tag", "message")
    cursor = stage.sessions.sweep(0)
    while cursor:
        cursor = stage.sessions.sweep(cursor)
    assert not stage.has_key(late)
    assert stage.has_key(own)
    stage.redis.delete(own)

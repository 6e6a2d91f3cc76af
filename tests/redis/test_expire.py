import pytest

from broker.records import BeatReply, Cause
from tests.support.racing import race
from tests.support.stage import heartbeat


@pytest.fixture
def session(stage):
    return stage.worker()


def test_a_session_is_marked_dead_with_its_cause(stage, session):
    stage.wakes()
    assert stage.sessions.expire(session, Cause.HUNG, "no step")
    row = stage.session(session)
    assert (row.state, row.cause, row.reason) == ("dead", Cause.HUNG, "no step")
    assert stage.sessions.state(session) == "dead"
    assert stage.wakes()


def test_a_session_dies_once(stage, session):
    assert stage.sessions.expire(session, Cause.LOST, "first")
    assert not stage.sessions.expire(session, Cause.CRASHED, "second")
    assert stage.session(session).reason == "first"


def test_an_unknown_session_stays_unknown(stage):
    assert not stage.sessions.expire("nobody", Cause.LOST, "gone")
    assert not stage.has_key(stage.keys.session("nobody").record)
    assert stage.sessions.state("nobody") is None


def test_a_beat_since_the_judgement_saves_the_session(stage, session):
    stage.age_beat(session, 100)
    judged = stage.session(session).beat_ms
    stage.sessions.beat(session, "gpu0@host", heartbeat())
    assert not stage.sessions.expire(session, Cause.LOST, "silent", judged)
    assert stage.session(session).state == "ready"


def test_no_beat_since_the_judgement_ends_it(stage, session):
    judged = stage.session(session).beat_ms
    assert stage.sessions.expire(session, Cause.LOST, "silent", judged)


def test_a_judgement_on_an_older_beat_does_not_count(stage, session):
    judged = stage.session(session).beat_ms
    assert not stage.sessions.expire(session, Cause.LOST, "silent", judged - 1)


def test_the_supervisor_judges_by_no_beat(stage, session):
    stage.sessions.beat(session, "gpu0@host", heartbeat())
    assert stage.sessions.expire(session, Cause.CRASHED, "its process ended")


def test_a_supervisor_speaks_for_its_own_process_only(stage):
    session = stage.worker(instance="mine")
    assert not stage.sessions.expire(session, Cause.CRASHED, "ended", instance="another's")
    assert stage.session(session).state == "ready"
    assert stage.sessions.expire(session, Cause.CRASHED, "ended", instance="mine")


def test_the_batches_stay_until_they_are_released(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    assert stage.assigned(job) == {0: batch}
    assert stage.session(session).batches == 1


def test_a_beat_and_a_judgement_at_once_agree(stage):
    """Either the beat came first and saved the session, or it learns that it came too late."""
    for number in range(20):
        session = stage.worker(f"gpu{number}@host")
        stage.age_beat(session, 100)
        judged = stage.session(session).beat_ms
        reply, died = race(
            lambda session=session: stage.sessions.beat(session, "w", heartbeat()),
            lambda session=session, judged=judged: stage.sessions.expire(session, Cause.LOST, "silent", judged),
        )
        assert died == (reply.reply is BeatReply.FENCED)
        assert (stage.session(session).state == "dead") == died


def test_of_many_judges_at_once_one_ends_it(stage, session):
    replies = race(*[lambda: stage.sessions.expire(session, Cause.LOST, "silent")] * 6)
    assert sorted(replies) == [False] * 5 + [True]

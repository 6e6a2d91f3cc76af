import pytest

from tests.support.stage import heartbeat

NAME = "gpu0@host"


@pytest.fixture
def session(stage):
    return stage.worker(NAME, instance="i")


def test_the_session_is_watched_from_now_on(stage, session):
    assert stage.session(session).watch_age_s > 1e6
    stage.age_beat(session, 100)
    for _ in range(2):
        assert stage.sessions.watch(session, "i") == "ready"
    row = stage.session(session)
    assert (row.watch_age_s < 5, row.beat_age_s >= 100) == (True, True)


def test_another_supervisor_learns_its_state_and_watches_nothing(stage, session):
    assert stage.sessions.watch(session, "other") == "ready"
    assert stage.session(session).watched_ms == 0


def test_a_dead_session_stays_as_it_is(stage, session):
    stage.kill(session)
    before = stage.redis.hgetall(stage.keys.session(session).record)
    assert stage.sessions.watch(session, "i") == "dead"
    assert stage.redis.hgetall(stage.keys.session(session).record) == before


def test_a_session_that_nobody_knows_is_not_made(stage):
    assert stage.sessions.watch("nobody", "i") is None
    assert not stage.has_key(stage.keys.session("nobody").record)


def test_it_wakes_no_driver_and_beats_keep_it(stage, session):
    stage.wakes()
    stage.sessions.watch(session, "i")
    assert not stage.wakes()
    stage.sessions.beat(session, NAME, heartbeat())
    assert stage.session(session).watch_age_s < 5

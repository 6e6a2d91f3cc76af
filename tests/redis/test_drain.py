import pytest

from broker.records import BeatReply
from tests.support.stage import heartbeat


@pytest.fixture
def session(stage):
    return stage.worker()


def test_a_worker_is_asked_at_its_next_beat(stage, session):
    assert stage.sessions.request_drain(session)
    assert stage.session(session).drain == 1
    assert stage.sessions.beat(session, "gpu0@host", heartbeat()).reply is BeatReply.DRAIN


def test_asking_twice_is_harmless(stage, session):
    assert stage.sessions.request_drain(session)
    assert stage.sessions.request_drain(session)
    assert stage.session(session).drain == 1


def test_a_dead_worker_stays_dead(stage, session):
    stage.kill(session)
    stage.sessions.request_drain(session)
    assert stage.sessions.beat(session, "gpu0@host", heartbeat()).reply is BeatReply.FENCED


def test_a_forgotten_session_does_not_come_back(stage, session):
    stage.kill(session)
    stage.sessions.forget(stage.session(session))
    assert not stage.sessions.request_drain(session)
    assert not stage.has_key(stage.keys.session(session).record)

import pytest
from typer.testing import CliRunner

from broker.errors import BrokerUnavailableError
from broker.records import BeatReply
from broker.sessions import Sessions
from driver.cli.app import app
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


def test_who_waits_for_the_end_asks_again_where_the_answer_is_late(stage, session, settings, monkeypatch):
    asked = []
    ask = Sessions.request_drain

    def late(sessions, session_id):
        asked.append(ask(sessions, session_id))
        if len(asked) == 1:
            raise BrokerUnavailableError("timeout")
        stage.kill(session)
        return True

    monkeypatch.setattr(Sessions, "request_drain", late)
    place = {"STOKER_BROKER_URL": settings.broker_url, "STOKER_NAMESPACE": settings.namespace}
    run = CliRunner().invoke(app, ["drain", stage.session(session).worker], env=place)
    assert run.exit_code == 0
    assert asked == [True, True]

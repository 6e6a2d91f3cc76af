import pytest

from broker import pulse as module
from broker.presence import own_name
from broker.records import BeatReply
from broker.settings import BrokerSettings
from broker.store import Store
from tests.support.stage import heartbeat
from tests.support.waiting import wait_until

NAME = "gpu0@host"


@pytest.fixture
def session(stage):
    return stage.worker(NAME)


@pytest.fixture
def pulse(store, session):
    pulse = store.pulse(session, NAME)
    yield pulse
    pulse.close()


def number(stage, session):
    """The connection that the session's record names, as Redis counts them."""
    run_id, _, number = stage.session(session).connection.partition(":")
    assert run_id == stage.redis.info("server")["run_id"]
    return int(number)


def cut(stage, session):
    assert stage.redis.client_kill_filter(_id=number(stage, session)) == 1


def test_it_beats_as_the_session(stage, session, pulse):
    stage.age_beat(session, 100)
    assert pulse.beat(heartbeat(steps=9)).reply is BeatReply.GO_ON
    row = stage.session(session)
    assert (row.steps, row.beat_age_s < 5) == (9, True)


def test_the_record_names_the_one_connection_by_which_the_beats_come(stage, session, pulse):
    pulse.beat(heartbeat())
    named = number(stage, session)
    for _ in range(3):
        pulse.beat(heartbeat())
    assert pulse.is_settled
    assert number(stage, session) == named
    (client,) = stage.redis.client_list(client_id=[named])
    assert client["cmd"] == "evalsha"


def test_the_name_is_asked_for_once_a_connection(stage, session, pulse, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "own_name", lambda *args: asked.append(args) or own_name(*args))
    for _ in range(3):
        pulse.beat(heartbeat())
    assert len(asked) == 1
    cut(stage, session)
    for _ in range(3):
        pulse.beat(heartbeat())
    assert len(asked) == 2


def test_a_connection_made_anew_in_the_middle_of_a_beat_is_named_by_the_next(stage, session, pulse):
    pulse.beat(heartbeat())
    before = number(stage, session)
    cut(stage, session)
    pulse.beat(heartbeat())
    assert not pulse.is_settled
    pulse.beat(heartbeat())
    assert pulse.is_settled
    after = number(stage, session)
    assert after != before
    assert stage.redis.client_list(client_id=[before]) == []
    assert len(stage.redis.client_list(client_id=[after])) == 1


def test_a_connection_is_closed_with_its_pulse(stage, session, pulse):
    pulse.beat(heartbeat())
    named = number(stage, session)
    pulse.close()
    wait_until(lambda: not stage.redis.client_list(client_id=[named]), what="the end of the connection")


@pytest.mark.parametrize("refused", ["client|id", "info"])
def test_where_redis_does_not_tell_the_session_names_none(server, stage, session, refused):
    stage.redis.execute_command("ACL", "SETUSER", "w", "on", ">p", "+@all", f"-{refused}", "~*", "&*")
    url = server.url.replace("://", "://w:p@")
    limited = Store(BrokerSettings(broker_url=url, namespace="test"))
    pulse = limited.pulse(session, NAME)
    try:
        stage.age_beat(session, 100)
        for _ in range(2):
            assert pulse.beat(heartbeat()).reply is BeatReply.GO_ON
        assert pulse.is_settled
        row = stage.session(session)
        assert (row.connection, row.beat_age_s < 5) == ("", True)
    finally:
        pulse.close()
        limited.close()
        stage.redis.execute_command("ACL", "DELUSER", "w")

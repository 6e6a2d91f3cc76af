import pytest

from broker.ledger import NotLeaderError
from broker.records import BeatReply
from tests.support.racing import race
from tests.support.stage import LEADER, heartbeat

NAME = "gpu0@host"


@pytest.fixture
def session(stage):
    return stage.worker(NAME)


def recall(stage, session, order="one", count=3):
    return stage.ledger.recall(LEADER, session, order, count)


def told(stage, session):
    """What the next beat is asked to give back."""
    return stage.sessions.beat(session, NAME, heartbeat()).recalled


def test_an_order_is_told_once(stage, session):
    assert recall(stage, session)
    assert [told(stage, session) for _ in range(3)] == [3, 0, 0]


def test_what_has_begun_is_wanted_only_where_the_order_says_so(stage, session):
    def told_of_begun():
        return stage.sessions.beat(session, NAME, heartbeat()).begun

    assert stage.ledger.recall(LEADER, session, "one", 3, begun=True)
    assert [told_of_begun(), told_of_begun()] == [True, False]
    recall(stage, session, "two")
    assert not told_of_begun()


def test_an_order_that_is_given_twice_is_told_once(stage, session):
    assert recall(stage, session)
    assert not recall(stage, session)
    assert told(stage, session) == 3
    assert not recall(stage, session)
    assert told(stage, session) == 0


def test_of_two_orders_the_later_is_told(stage, session):
    recall(stage, session, "one", 3)
    assert recall(stage, session, "two", 1)
    assert [told(stage, session), told(stage, session)] == [1, 0]


def test_an_order_that_is_too_old_is_not_told(stage, session):
    recall(stage, session)
    stage.age_field(stage.keys.session(session).record, "recall_ms", 6)
    assert [told(stage, session), told(stage, session)] == [0, 0]


def test_a_worker_that_drains_is_told_too(stage, session):
    stage.sessions.request_drain(session)
    recall(stage, session)
    answer = stage.sessions.beat(session, NAME, heartbeat())
    assert (answer.reply, answer.recalled) == (BeatReply.DRAIN, 3)


def test_only_the_leader_may(stage, session):
    with pytest.raises(NotLeaderError):
        stage.ledger.recall("deposed", session, "one", 3)
    assert told(stage, session) == 0


def test_the_dead_are_asked_nothing_and_told_nothing(stage, session):
    recall(stage, session)
    stage.kill(session)
    assert not recall(stage, session, "two")
    answer = stage.sessions.beat(session, NAME, heartbeat())
    assert (answer.reply, answer.recalled) == (BeatReply.FENCED, 0)


def test_a_forgotten_session_does_not_come_back(stage, session):
    stage.kill(session)
    stage.sessions.forget(stage.session(session))
    assert not recall(stage, session)
    assert not stage.has_key(stage.keys.session(session).record)


def test_the_next_session_of_a_worker_is_not_asked_for_what_the_last_one_held(stage, session):
    recall(stage, session)
    stage.kill(session)
    assert told(stage, stage.worker(NAME)) == 0


def test_beats_at_once_are_told_once(stage, session):
    for number in range(20):
        recall(stage, session, str(number))
        assert sorted(race(*[lambda: told(stage, session)] * 3)) == [0, 0, 3]

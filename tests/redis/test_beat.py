import msgspec
import pytest

from broker.records import BeatReply
from broker.states import WorkerState
from tests.support.racing import race
from tests.support.stage import heartbeat

NAME = "gpu0@host"


@pytest.fixture
def session(stage):
    return stage.worker(NAME)


def beat(stage, session, **fields):
    return stage.sessions.beat(session, NAME, heartbeat(**fields)).reply


def test_a_beat_stores_what_it_reports(stage, session):
    report = heartbeat(running=2, waiting=1, steps=9, generated_tokens=40, reason="r", telemetry='{"x": 1}')
    stage.sessions.beat(session, NAME, report)
    row = stage.session(session)
    assert {name: getattr(row, name) for name in report.__struct_fields__} == msgspec.structs.asdict(report)


def test_a_beat_renews_the_lease(stage, session):
    stage.age_beat(session, 100)
    assert stage.session(session).beat_age_s >= 100
    assert beat(stage, session) is BeatReply.GO_ON
    assert stage.session(session).beat_age_s < 5


def test_a_beat_keeps_the_name(stage, session):
    stage.redis.expire(stage.keys.worker(NAME), 10)
    beat(stage, session)
    assert stage.redis.ttl(stage.keys.worker(NAME)) > 10


def test_a_dead_session_is_fenced_and_renews_nothing(stage, session):
    stage.kill(session)
    stage.age_beat(session, 100)
    assert beat(stage, session, steps=99) is BeatReply.FENCED
    row = stage.session(session)
    assert (row.state, row.steps) == ("dead", 0)
    assert row.beat_age_s >= 100


def test_a_forgotten_session_is_fenced_and_does_not_come_back(stage, session):
    stage.kill(session)
    stage.sessions.forget(stage.session(session))
    assert beat(stage, session) is BeatReply.FENCED
    assert stage.sessions.table() == []
    assert not stage.has_key(stage.keys.session(session).record)


def test_a_session_that_is_asked_to_drain_learns_so(stage, session):
    stage.sessions.request_drain(session)
    assert beat(stage, session) is BeatReply.DRAIN
    assert beat(stage, session, state=WorkerState.DRAINING) is BeatReply.DRAIN


def test_a_new_state_wakes_the_driver(stage, session):
    stage.wakes()
    beat(stage, session)
    assert not stage.wakes()
    beat(stage, session, state=WorkerState.DRAINING)
    assert stage.wakes()


def stalled_s(stage, session):
    return stage.session(session).stalled_s


def test_a_step_is_progress(stage, session):
    beat(stage, session, running=1, steps=1)
    stage.age_field(stage.keys.session(session).record, "progress_ms", 100)
    beat(stage, session, running=1, steps=2)
    assert stalled_s(stage, session) < 5


@pytest.mark.parametrize("load", [{"running": 1}, {"waiting": 1}])
def test_work_in_hand_and_no_step_is_none(stage, session, load):
    beat(stage, session, **load)
    stage.age_field(stage.keys.session(session).record, "progress_ms", 100)
    beat(stage, session, **load)
    assert stalled_s(stage, session) >= 100


def test_silence_is_no_stall(stage, session):
    """Steps were made, or not: nobody has heard of it."""
    beat(stage, session, running=1)
    stage.age_field(stage.keys.session(session).record, "progress_ms", 100)
    stage.age_beat(session, 100)
    assert stalled_s(stage, session) < 5


def test_having_nothing_to_do_is_no_stall(stage, session):
    stage.age_field(stage.keys.session(session).record, "progress_ms", 100)
    beat(stage, session)
    assert stalled_s(stage, session) < 5


def test_the_first_work_after_idleness_starts_from_the_last_idle_beat(stage, session):
    beat(stage, session, steps=5)
    beat(stage, session, steps=5, running=1)
    assert stalled_s(stage, session) < 5


def test_beats_and_an_end_at_once_leave_a_dead_session(stage, session):
    for _ in range(20):
        race(lambda: beat(stage, session), lambda: stage.sessions.expire(session, "crashed", "ended"))
        assert beat(stage, session) is BeatReply.FENCED
        assert stage.session(session).state == "dead"

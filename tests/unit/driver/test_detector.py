import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records import Session
from broker.states import WorkerState
from driver.detector import DetectorLimits, Verdict, judge

LIMITS = DetectorLimits(heartbeat_interval=1.0, heartbeat_timeout=10.0, failure_threshold=3, stall_timeout=60.0)


def session(**fields):
    return Session(**{"id": "s", "worker": "w", "epoch": 1, "state": "ready", **fields})


def verdict(**fields):
    return judge(session(**fields), LIMITS)


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0.0, Verdict.ALIVE),
        (3.0, Verdict.ALIVE),
        (3.1, Verdict.SUSPECT),
        (10.0, Verdict.SUSPECT),
        (10.1, Verdict.DEAD),
    ],
)
def test_silence_makes_suspect_and_then_dead(age_s, expected):
    assert verdict(beat_age_s=age_s) is expected


def test_a_reported_end_is_dead_at_once():
    assert verdict(state="dead", beat_age_s=0.0) is Verdict.DEAD


@pytest.mark.parametrize("load", [{"running": 1}, {"waiting": 1}, {"running": 3, "waiting": 2}])
def test_work_in_hand_without_a_step_hangs(load):
    assert verdict(stalled_s=60.0, **load) is Verdict.ALIVE
    assert verdict(stalled_s=60.1, **load) is Verdict.HUNG


def test_without_work_nobody_hangs():
    assert verdict(stalled_s=1e6) is Verdict.ALIVE


def test_who_does_not_beat_is_not_called_hung():
    assert verdict(running=1, stalled_s=100.0, beat_age_s=5.0) is Verdict.SUSPECT
    assert verdict(running=1, stalled_s=100.0, beat_age_s=50.0) is Verdict.DEAD


@pytest.mark.parametrize("state", [state for state in WorkerState if state != "dead"])
def test_every_other_state_is_alive_while_it_beats(state):
    assert verdict(state=state, beat_age_s=1.0) is Verdict.ALIVE


ORDER = [Verdict.ALIVE, Verdict.SUSPECT, Verdict.DEAD]


@given(st.floats(0, 100), st.floats(0, 100))
def test_longer_silence_never_makes_a_worker_look_better(one, other):
    shorter, longer = sorted([one, other])
    assert ORDER.index(verdict(beat_age_s=shorter)) <= ORDER.index(verdict(beat_age_s=longer))

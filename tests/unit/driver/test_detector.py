import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records import Session
from broker.states import WorkerState
from driver.detector import REPORT_S, DetectorLimits, Verdict, judge

LIMITS = DetectorLimits(heartbeat_interval=1.0, heartbeat_timeout=10.0, failure_threshold=3, stall_timeout=60.0)


def session(**fields):
    return Session(**{"id": "s", "worker": "w", "epoch": 1, "state": "ready", **fields})


def verdict(*, connected=None, **fields):
    return judge(session(**fields), LIMITS, connected=connected)


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


@pytest.mark.parametrize(
    ("age_s", "expected"), [(0.0, Verdict.ALIVE), (3.0, Verdict.ALIVE), (3.1, Verdict.DEAD), (9.0, Verdict.DEAD)]
)
def test_who_is_silent_and_not_connected_is_dead_once_three_beats_are_missing(age_s, expected):
    assert verdict(connected=False, beat_age_s=age_s) is expected


def test_what_is_closed_between_two_beats_says_nothing_of_a_hang():
    assert verdict(connected=False, running=1, stalled_s=61.0) is Verdict.HUNG


@pytest.mark.parametrize(("interval_s", "after_s"), [(0.2, REPORT_S), (0.5, REPORT_S), (1.0, 3.0), (5.0, 15.0)])
def test_a_living_supervisor_has_the_time_to_say_why_its_worker_ended(interval_s, after_s):
    limits = DetectorLimits(heartbeat_interval=interval_s, heartbeat_timeout=60.0)
    assert limits.presence_counts_after == after_s
    assert judge(session(beat_age_s=after_s), limits, connected=False) is not Verdict.DEAD
    assert judge(session(beat_age_s=after_s + 0.1), limits, connected=False) is Verdict.DEAD


@pytest.mark.parametrize(
    ("watch_age_s", "expected"), [(0.0, Verdict.SUSPECT), (3.0, Verdict.SUSPECT), (3.1, Verdict.DEAD)]
)
def test_of_whom_a_supervisor_watches_a_closed_connection_says_nothing(watch_age_s, expected):
    watched_ms = 10_000 + int((3.5 - watch_age_s) * 1000)
    assert verdict(connected=False, beat_age_s=3.5, beat_ms=10_000, watched_ms=watched_ms) is expected


def test_nobody_watches_for_ever():
    assert verdict(connected=False, beat_age_s=10.1, beat_ms=10_000, watched_ms=20_100) is Verdict.DEAD


@pytest.mark.parametrize(
    ("ages_s", "expected"),
    [([], False), ([1.5], False), ([1.6], True), ([9.0, 1.5], False), ([9.0, 1.6], True)],
)
def test_all_are_silent_when_not_one_beats(ages_s, expected):
    rows = [session(beat_age_s=age_s) for age_s in ages_s]
    assert LIMITS.are_all_silent(rows) is expected
    assert LIMITS.are_all_silent([*rows, session(state="dead")]) is expected


ages = st.floats(0, 100)


@given(ages, ages, st.integers(0, 2), st.sampled_from([True, None]))
def test_a_connection_that_is_not_known_to_be_closed_changes_no_verdict(age_s, stalled_s, running, connected):
    fields = {"beat_age_s": age_s, "stalled_s": stalled_s, "running": running}
    assert verdict(connected=connected, **fields) is verdict(**fields)


@given(ages, ages, st.integers(0, 2))
def test_a_closed_connection_kills_the_silent_and_nobody_else(age_s, stalled_s, running):
    fields = {"beat_age_s": age_s, "stalled_s": stalled_s, "running": running}
    silent = age_s > LIMITS.presence_counts_after
    assert verdict(connected=False, **fields) is (Verdict.DEAD if silent else verdict(**fields))

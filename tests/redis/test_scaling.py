"""The leader's step: from the ledger and the heartbeat table to a published number, and to whoever has it done."""

import pytest

from broker.ledger import NotLeaderError
from broker.records import ScaleRecord
from broker.states import WorkerState
from driver.detector import DetectorLimits
from driver.scaling import Scaling
from driver.settings import DriverSettings
from driver.speeds import Speeds
from tests.support.clock import FakeClock
from tests.support.stage import LEADER, heartbeat


class Scaler:
    """Notes what it is asked for."""

    def __init__(self, started=0, problem=""):
        self.asked = []
        self.started = started
        self.problem = problem

    def scale(self, wanted, sessions):
        self.asked.append(wanted)
        return self.problem

    def close(self):
        self.asked.append("close")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make(stage, clock):
    def scaling(scaler=None, **settings):
        return Scaling(stage.store, DriverSettings(**settings), DetectorLimits(), clock, scaler)

    return scaling


@pytest.fixture
def step(stage, clock):
    """Steps once, a second later."""
    speeds = Speeds()

    def run(scaling, times=1):
        for _ in range(times):
            clock.advance(1.0)
            table = stage.sessions.table()
            speeds.note(table)
            scaling.step(LEADER, table, speeds, stage.store.backlogs.read)
        return stage.store.scale.read()

    return run


def test_without_bounds_nobody_decides(make, step, stage):
    scaler = Scaler()
    stage.job(3)
    assert step(make(scaler), 3) == ScaleRecord()
    assert scaler.asked == []


def test_the_first_request_wants_the_first_worker(make, step, stage):
    scaling = make(scaler := Scaler(), autoscale="0,4")
    assert step(scaling).wanted == 0
    stage.job(3)
    record = step(scaling)
    assert (record.wanted, record.bounds) == (1, "0,4")
    assert "speed not known yet" in record.reason
    assert scaler.asked == [0, 1]
    assert stage.redis.llen(stage.keys.scale_wanted) == 1


def test_measured_speed_tells_how_many(make, step, stage):
    scaling = make(Scaler(), autoscale="0,9", drain_target=11)
    session = stage.worker(running=8, generated_tokens=0)
    stage.job(60)  # 14 tokens each
    stage.age_beat(session, 2)
    step(scaling)
    stage.sessions.beat(session, "gpu0@host", heartbeat(running=8, generated_tokens=56))
    assert step(scaling).wanted == 3  # 840 tokens at 28 a second in 11 s: 2.7


def test_peoples_bounds_win_until_they_are_taken_back(make, step, stage):
    scaling = make(scaler := Scaler(), autoscale="1,2")
    stage.store.scale.set_manual(5)
    record = step(scaling)
    assert (record.wanted, record.bounds, record.reason) == (5, "5,5", "asked for")
    stage.store.scale.unset()
    assert step(scaling).wanted == 2
    assert scaler.asked == [5, 2]


def test_a_driver_without_bounds_forgets_the_number_when_people_take_theirs_back(make, step, stage):
    scaling = make(scaler := Scaler())
    stage.store.scale.set_manual(5)
    assert step(scaling).wanted == 5
    stage.store.scale.unset()
    assert step(scaling) == ScaleRecord()
    assert scaler.asked == [5]


def test_a_new_driver_goes_on_from_what_is_published(make, step, stage):
    stage.store.scale.want(LEADER, ScaleRecord(wanted=4))
    assert step(make(autoscale="1,9")).wanted == 4


def test_or_from_the_workers_that_are_there(make, step, stage):
    stage.worker()
    stage.worker("gpu1@host", state="loading")
    assert step(make(autoscale="0,9")).wanted == 2


def test_or_from_those_that_the_scaler_has_just_started(make, step):
    assert step(make(Scaler(started=3), autoscale="0,9")).wanted == 3


def test_what_another_leader_has_decided_meanwhile_counts(make, step, stage):
    scaling = make(autoscale="1,9")
    assert step(scaling).wanted == 1
    stage.store.scale.want(LEADER, ScaleRecord(wanted=4))
    assert step(scaling).wanted == 4


def test_what_keeps_the_scaler_is_published_and_taken_back(make, step, stage):
    scaling = make(scaler := Scaler(problem="no such service"), autoscale="1,2")
    assert step(scaling, 2).problem == "no such service"
    scaler.problem = ""
    assert step(scaling, 2).problem == ""


def test_a_calm_number_is_not_written_again(make, step, stage, monkeypatch):
    scaling = make(autoscale="1,2")
    step(scaling)
    written = []
    monkeypatch.setattr(stage.store.scale, "want", lambda *given, **named: written.append((given, named)))
    step(scaling, 3)
    assert written == []


def test_only_the_leader_has_anything_done(make, stage):
    scaling = make(scaler := Scaler(), autoscale="1,2")
    with pytest.raises(NotLeaderError):
        scaling.step("another", [], Speeds(), stage.store.backlogs.read)
    assert scaler.asked == []
    assert stage.store.scale.read() == ScaleRecord()


def test_work_for_a_model_that_nobody_serves_wants_nobody(make, step, stage):
    scaling = make(autoscale="0,9", scale_in_cooldown=0)
    stage.worker(model="m")
    stage.job(3, model="other")
    assert step(scaling, 2).wanted == 0
    stage.job(3, model="m")
    assert step(scaling).wanted == 1


def test_a_sleeping_worker_does_not_stand_for_one_that_works(make, step, stage):
    stage.worker(state=WorkerState.SLEEPING)
    scaling = make(scaler := Scaler(), autoscale="0,4")
    assert step(scaling).wanted == 1
    stage.job(3)
    assert step(scaling).wanted == 2
    assert scaler.asked == [1, 2]


def test_a_new_leader_counts_those_that_sleep_as_there(make, step, stage):
    stage.worker("gpu0@host", state=WorkerState.SLEEPING)
    stage.worker("gpu1@host")
    assert step(make(autoscale="0,4")).wanted == 2


def test_it_ends_with_its_scaler(make):
    scaling = make(scaler := Scaler())
    scaling.close()
    make().close()
    assert scaler.asked == ["close"]

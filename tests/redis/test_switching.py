"""The leader's step: from backlogs and the heartbeat table to what workers are asked to serve."""

import pytest

from driver.detector import DetectorLimits
from driver.settings import DriverSettings
from driver.speeds import Speeds
from driver.switching import Switching
from tests.support.clock import FakeClock


class Control:
    """Notes what is sent to whom."""

    def __init__(self):
        self.sent = []

    def broadcast(self, name, arguments, destination):
        self.sent.append((name, arguments, destination))


class App:
    def __init__(self):
        self.control = Control()


@pytest.fixture
def app():
    return App()


@pytest.fixture
def step(stage, app):
    """Makes a driver's switching; returns a call that steps it once, some seconds later."""

    def make(**settings):
        clock = FakeClock()
        switching = Switching(DriverSettings(**settings), DetectorLimits(), clock, app)

        def run(seconds):
            clock.advance(seconds)
            switching.step(stage.sessions.table(), Speeds(), stage.store.backlogs.read)
            return app.control.sent

        return run

    return make


def test_an_idle_worker_is_asked_for_the_model_that_waits(stage, step):
    stage.worker(model="small")
    stage.job(3, model="large")
    run = step(switch_models="small, large=/models/large")
    assert run(1) == []
    arguments = {"model": "/models/large", "served_model_name": "large", "finish": True}
    assert run(5) == [("switch_model", arguments, ["gpu0@host"])]
    assert len(run(1)) == 1


@pytest.mark.parametrize("fields", [{"state": "loading"}, {"state": "draining"}, {"model": "dedicated"}])
def test_a_worker_that_is_not_free_is_not_asked(stage, step, fields):
    stage.worker(**{"model": "small", **fields})
    stage.job(3, model="large")
    run = step(switch_models="small,large")
    run(1)
    assert run(10) == []


def test_a_worker_with_a_batch_is_not_asked(stage, step):
    session = stage.worker(model="small")
    stage.batch(session, stage.job(1, model="small"), [0], claimed=False)
    stage.job(3, model="large")
    run = step(switch_models="small,large")
    run(1)
    assert run(10) == []


def test_without_models_to_switch_nothing_is_read(stage, app):
    Switching(DriverSettings(), DetectorLimits(), FakeClock(), app).step(stage.sessions.table(), Speeds(), None)
    assert app.control.sent == []

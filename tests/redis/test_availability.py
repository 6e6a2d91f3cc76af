import pytest

from broker.states import WorkerState
from driver.availability import obstacle


def test_nothing_is_in_the_way_of_a_ready_worker(stage):
    stage.worker(model="m")
    assert obstacle(stage.store, "m") is None
    assert obstacle(stage.store, "") is None


def test_without_a_driver_nothing_runs(stage):
    stage.worker(model="m")
    stage.redis.delete(stage.keys.leader)
    assert "no driver is running" in obstacle(stage.store, "m")


def test_without_a_worker_nothing_runs(stage):
    assert obstacle(stage.store, "") == "no worker for any model is alive: start one with `stoker worker`"


def test_what_the_workers_serve_instead_is_named(stage):
    stage.worker("a@host", model="x")
    stage.worker("b@host", model="w")
    assert "no worker for model 'm' is alive (workers serve: w, x)" in obstacle(stage.store, "m")


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.DRAINING, WorkerState.POISONED])
def test_a_worker_that_is_not_ready_is_waited_for(stage, state):
    stage.worker(model="m", state=state)
    assert "no worker for model 'm' is ready yet: 1 still starting" in obstacle(stage.store, "m")


def test_the_dead_and_the_silent_do_not_count(stage):
    stage.kill(stage.worker("a@host", model="m"))
    stage.age_beat(stage.worker("b@host", model="m"), 11)
    assert "is alive:" in obstacle(stage.store, "m")

import pytest

from broker.states import WorkerState
from gpu_worker.standing import NotNowError, Standing


@pytest.fixture
def standing():
    made = Standing()
    made.ready()
    return made


def test_ready_it_takes_batches(standing):
    assert standing.state is WorkerState.READY
    assert standing.takes_batches
    assert not standing.gives_back


def test_out_of_service_it_gives_back_and_asleep_it_goes_on_to(standing):
    standing.leave(WorkerState.SLEEPING, "why", finish=False)
    assert (standing.state, standing.reason, standing.takes_batches, standing.gives_back) == (
        WorkerState.SLEEPING,
        "why",
        False,
        True,
    )
    standing.come_back(WorkerState.SLEEPING)
    assert (standing.reason, standing.takes_batches, standing.gives_back) == ("", False, True)
    standing.leave(WorkerState.LOADING, "", finish=False)
    standing.come_back(WorkerState.READY, "again")
    assert (standing.state, standing.reason, standing.takes_batches, standing.gives_back) == (
        WorkerState.READY,
        "again",
        True,
        False,
    )


def test_what_is_in_hand_may_finish_but_nothing_new_comes(standing):
    standing.leave(WorkerState.SLEEPING, "", finish=True)
    assert not standing.takes_batches
    assert not standing.gives_back


def test_only_a_worker_in_service_can_leave_it(standing):
    standing.leave(WorkerState.LOADING, "", finish=False)
    with pytest.raises(NotNowError, match="the worker is loading"):
        standing.leave(WorkerState.SLEEPING, "", finish=False)
    assert standing.state is WorkerState.LOADING


@pytest.mark.parametrize("end", ["drain", "set_aside"])
def test_an_end_that_comes_meanwhile_stays(standing, end):
    standing.leave(WorkerState.SLEEPING, "", finish=True)
    assert standing.drain(60) if end == "drain" else standing.set_aside("broken")
    ended = standing.state, standing.reason
    assert standing.is_ending
    standing.explain("loading")
    standing.come_back(WorkerState.READY)
    standing.ready()
    assert (standing.state, standing.reason) == ended
    assert not standing.takes_batches
    assert standing.gives_back is (end == "set_aside")


def test_a_drain_gives_back_when_its_time_is_over(standing):
    assert standing.drain(60)
    assert standing.takes_batches
    assert not standing.drain(60)
    late = Standing()
    late.drain(0)
    assert late.gives_back
    assert not late.takes_batches


def test_it_is_set_aside_once(standing):
    assert standing.set_aside("first")
    assert not standing.set_aside("second")
    assert standing.reason == "first"

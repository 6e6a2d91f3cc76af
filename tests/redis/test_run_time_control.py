"""The operations of run-time control on a runtime in this process, where each moment can be met."""

import os
import threading

import pytest

from broker.errors import BrokerRefusedError, BrokerUnavailableError
from broker.states import WorkerState
from broker.store import Store
from gpu_worker import upkeep
from gpu_worker.control import Control
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions
from gpu_worker.execute import execute_batch
from gpu_worker.runtime import Runtime
from gpu_worker.settings import WorkerSettings
from gpu_worker.telemetry import Telemetry
from tests.support.waiting import wait_until

NAME = "gpu0@host"
SLOW = SimulatedOptions(tokens_per_s=20)


OF_ONE_MODEL = {"revision": "v1", "trust_remote_code": True, "openai_tokenizer": "folder"}


class Engine(SimulatedEngine):
    """Fails where a test wants it to."""

    error = None

    def sleep(self):
        self._break()
        super().sleep()

    def wake(self):
        self._break()
        super().wake()

    def _break(self):
        if self.error is not None:
            raise self.error


class Process(BaseException):
    """The process would have ended here."""


@pytest.fixture
def engines():
    """Every engine that was made, with what it was made from."""
    return []


@pytest.fixture
def runtime(settings, stage, engines, monkeypatch):
    def end(code, reason):
        raise Process(code, reason)

    def load(wanted):
        engines.append((wanted, Engine(SLOW)))
        return engines[-1][1]

    monkeypatch.setattr(upkeep, "end_process", end)
    monkeypatch.setattr(upkeep, "QUICK_S", 10.0)  # here every answer is the end
    store = Store(settings)
    store.sessions.open("s", NAME, "i", {"pid": os.getpid()})
    worker = WorkerSettings(worker_name=NAME, engine="simulated", model="m", checkpoint_tokens=1, **OF_ONE_MODEL)
    made = Runtime(store, worker, "s", os.getpid(), Telemetry((), lambda: 0.0), load)
    made.start()
    wait_until(lambda: stage.session("s").state == "ready")
    yield made
    made.stop()


@pytest.fixture
def do(runtime):
    """Does a command; what the answer holds, or the refusal."""
    control = Control(runtime, None)

    def done(name, **arguments):
        answer = control.answer(name, arguments)
        return answer.get("ok", answer)

    return done


def error(answer):
    return answer["operation"]["error"]


def seen(stage):
    row = stage.session("s")
    return row.state, row.reason


def test_what_is_assigned_and_not_yet_claimed_is_given_back_without_an_attempt(do, stage, runtime, app):
    job = stage.job(3)
    batch = stage.batch("s", job, [0, 1, 2], claimed=False)

    assert error(do("sleep")) == ""

    assert stage.pending(job) == [0, 1, 2]
    assert stage.in_hand("s")[0] == 0
    assert not stage.has_key(stage.keys.job(job).attempts)
    execute_batch(app, runtime, batch, job)  # its message comes late
    assert stage.pending(job) == [0, 1, 2]
    assert error(do("wake")) == ""
    wait_until(lambda: seen(stage) == ("ready", ""))


@pytest.mark.parametrize("asleep", [False, True])
def test_a_refusal_of_redis_in_the_middle_leaves_the_worker_as_it_was(do, stage, runtime, monkeypatch, asleep):
    if asleep:
        do("sleep")
    was = runtime.standing.state
    stage.batch("s", stage.job(1), [0], claimed=False) if not asleep else None
    with monkeypatch.context() as patch:

        def refuse(_):
            raise BrokerRefusedError("no right to look")

        patch.setattr(runtime.store.queries, "batches", refuse)
        assert error(do("wake" if asleep else "reload")) == "no right to look"

    assert runtime.standing.state is was
    assert runtime.standing.takes_batches is not asleep
    wait_until(lambda: seen(stage) == (was, "no right to look"))
    assert error(do("wake" if asleep else "reload")) == ""


def test_an_outage_of_redis_in_the_middle_is_waited_out(do, stage, runtime, monkeypatch):
    look, looks = runtime.store.queries.batches, []

    def flaky(session_id):
        looks.append(session_id)
        if len(looks) < 3:
            raise BrokerUnavailableError("away")
        return look(session_id)

    monkeypatch.setattr(runtime.store.queries, "batches", flaky)
    assert error(do("sleep")) == ""
    assert len(looks) == 3


def test_a_drain_in_the_middle_ends_the_operation_and_what_is_in_hand_may_finish(do, stage, runtime, app):
    job = stage.job(1)
    running = threading.Thread(target=execute_batch, args=(app, runtime, stage.batch("s", job, [0]), job))
    running.start()
    wait_until(lambda: runtime.seat.view().load.running)
    slept = {}
    asking = threading.Thread(target=lambda: slept.update(do("sleep", finish=True)))
    asking.start()
    wait_until(lambda: runtime.standing.state is WorkerState.SLEEPING)

    runtime.drain()

    asking.join(60)
    assert error(slept) == "the worker is draining"
    running.join(60)
    assert [output.error for output in stage.results(job)] == [None]
    assert do("check_health")["state"] == "draining"
    assert error(do("wake")) == "the worker is draining"
    assert error(do("set_limits", slots=1)) == "the worker is draining"


def test_limits_of_one_with_much_in_hand_keep_everything(do, stage, runtime, app):
    job = stage.job(4)
    running = threading.Thread(target=execute_batch, args=(app, runtime, stage.batch("s", job, range(4)), job))
    running.start()
    wait_until(lambda: runtime.seat.view().load.running == 4)
    assert do("set_limits", slots=1)["operation"]["result"]["slots"] == 1
    assert wait_until(lambda: runtime.seat.view().load.running == 1)
    assert runtime.seat.view().load.waiting == 3
    do("set_limits", slots=4)
    running.join(60)
    assert [output.error for output in stage.results(job)] == [None] * 4


def test_a_deep_check_waits_for_the_end_though_there_are_tokens_to_save_before(do):
    assert error(do("check_health", deep=True)) == ""


def test_a_waking_that_finds_no_room_sleeps_on_and_says_so(do, stage, engines):
    do("sleep")
    engines[0][1].error = NoRoomError("others have the memory")
    assert error(do("wake")) == "others have the memory"
    wait_until(lambda: seen(stage) == ("sleeping", "others have the memory"))
    engines[0][1].error = None
    assert error(do("wake")) == ""
    wait_until(lambda: seen(stage) == ("ready", ""))


@pytest.mark.parametrize("fatal", [RuntimeError("CUDA error"), EngineDeadError("lost")])
@pytest.mark.parametrize("command", ["sleep", "wake"])
def test_an_engine_in_an_unknown_state_ends_the_process(do, engines, command, fatal):
    if command == "wake":
        do("sleep")
    engines[0][1].error = fatal
    assert "the engine is lost" in error(do(command))


def test_a_sleep_that_the_engine_refuses_changes_nothing(do, stage, engines):
    engines[0][1].error = NoRoomError("the weights find no room on the CPU")
    assert error(do("sleep")) == "the weights find no room on the CPU"
    wait_until(lambda: seen(stage) == ("ready", "the weights find no room on the CPU"))


def test_what_was_configured_for_one_model_holds_for_no_other(do, runtime, engines):
    do("switch_model", model="other", served_model_name="name")
    do("reload")
    do("switch_model", model="m")
    configured, *others, again = [wanted for wanted, _ in engines]
    for wanted in others:
        assert (wanted.model, wanted.served_model_name) == ("other", "name")
        assert (wanted.revision, wanted.trust_remote_code, wanted.openai_tokenizer) == ("", False, "")
    assert again == configured

"""What a worker has not begun goes back when the leader asks for it: a runtime in this process, on a real ledger."""

import os
import threading
from contextlib import contextmanager

import pytest

from broker import codec
from broker.clock import SystemClock
from broker.deltas import TextDelta
from broker.messages import Request, SamplingParams
from broker.records import Cause
from broker.store import Store
from driver.detector import DetectorLimits
from driver.recovery import Recovery
from gpu_worker import in_hand
from gpu_worker.engine.base import Traits
from gpu_worker.engine.fan_out import FanOut
from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions
from gpu_worker.execute import execute_batch
from gpu_worker.runtime import Runtime
from gpu_worker.settings import WorkerSettings
from gpu_worker.telemetry import Telemetry
from tests.support.stage import LEADER, heartbeat
from tests.support.waiting import wait_until

NAME = "gpu0@host"
SLOTS = 2


class Engine(SimulatedEngine):
    """Takes minutes for a request, until it is told to hurry."""

    def __init__(self):
        super().__init__(SimulatedOptions(tokens_per_s=4, slots=SLOTS))

    def hurry(self):
        self._interval_s = 0.001


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def runtime(settings, stage, engine, monkeypatch):
    monkeypatch.setattr(in_hand, "SETTLE_S", 0.0)
    store = Store(settings)
    store.sessions.open("s", NAME, "i", {"pid": os.getpid()})
    worker = WorkerSettings(worker_name=NAME, engine="simulated", model="m")
    made = Runtime(store, worker, "s", os.getpid(), Telemetry((), lambda: 0.0), lambda _: FanOut(engine))
    made.start()
    wait_until(lambda: stage.session("s").state == "ready")
    yield made
    made.stop()


@pytest.fixture
def run(stage, runtime, engine, app):
    """Has an open job of such requests run in one batch; goes on once the engine has all, then hurries to the end."""

    def in_engine():
        load = runtime.seat.view().load
        return load.running + load.waiting

    @contextmanager
    def running(*requests, job="j", deadline_s=None):
        stage.ledger.submit(job, "", requests, offset=0, last=False, deadline_s=deadline_s)
        batch = stage.batch("s", job, range(len(requests)), claimed=False)
        thread = threading.Thread(target=execute_batch, args=(app, runtime, batch, job))
        before = in_engine()
        thread.start()
        wait_until(lambda: in_engine() >= before + len(requests))
        wait_until(lambda: runtime.seat.view().load.running == min(SLOTS, len(requests)))
        yield job
        engine.hurry()
        thread.join(60)
        assert not thread.is_alive()

    return running


def request(max_tokens=60, *, n=1, **fields):
    params = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(prompt="a prompt", params=params, **fields)


def recall(stage, runtime, count, order="order", *, begun=False):
    """The leader asks, and the worker hears of it."""
    assert stage.ledger.recall(LEADER, "s", order, count, begun=begun)
    beat = runtime._heart.beat_now()
    assert runtime._heart.answered(beat, 10)


def test_the_last_that_wait_are_given_back_without_an_attempt_and_the_others_finish(stage, runtime, run):
    with run(*[request()] * 6) as job:
        recall(stage, runtime, 3)
        wait_until(lambda: stage.pending(job) == [3, 4, 5])
        assert not stage.has_key(stage.keys.job(job).attempts)
        assert stage.in_hand("s")[0] <= 3
    assert sorted(output.index for output in stage.results(job)) == [0, 1, 2]
    assert stage.pending(job) == [3, 4, 5]
    assert stage.session("s").batches == 0
    wait_until(lambda: stage.session("s").given_back == 3)


def test_what_runs_stays_however_much_is_wanted(stage, runtime, run):
    with run(*[request()] * 3) as job:
        recall(stage, runtime, 9)
        wait_until(lambda: stage.pending(job) == [2])
    assert sorted(output.index for output in stage.results(job)) == [0, 1]


def test_what_runs_is_given_back_last_with_its_tokens_where_that_is_wanted(stage, runtime, engine, run):
    with run(*[request()] * 4) as job:
        wait_until(lambda: runtime.seat.view().load.generated_tokens >= 2 * SLOTS)
        recall(stage, runtime, 3, begun=True)
        wait_until(lambda: stage.pending(job) == [1, 2, 3])
        assert not stage.has_key(stage.keys.job(job).attempts)
        assert runtime.seat.view().load.running == 1
    assert [output.index for output in stage.results(job)] == [0]
    again = stage.batch("s", job, [1], claimed=False)
    (claimed,) = stage.ledger.claim(again, job, "s").requests
    assert claimed.generated
    (whole,) = stage.results(job)
    assert whole.token_ids[: len(claimed.generated)] == claimed.generated  # the same prompt has the same text


def test_what_runs_in_an_engine_that_cannot_go_on_with_it_stays(stage, runtime, engine, run, monkeypatch):
    monkeypatch.setattr(SimulatedEngine, "traits", Traits(token_ids=False))
    with run(*[request()] * 3) as job:
        recall(stage, runtime, 3, begun=True)
        wait_until(lambda: stage.pending(job) == [2])
    assert sorted(output.index for output in stage.results(job)) == [0, 1]


def test_what_was_begun_elsewhere_stays(stage, runtime, engine, run, app):
    with run(*[request()] * 2) as job:
        wait_until(lambda: runtime.seat.view().load.generated_tokens >= 2 * SLOTS)
        recall(stage, runtime, 1, begun=True)
        wait_until(lambda: stage.pending(job) == [1])
        batch = stage.batch("s", job, [1], claimed=False)
        resumed = threading.Thread(target=execute_batch, args=(app, runtime, batch, job))
        resumed.start()
        wait_until(lambda: runtime.seat.view().load.running == 2)
        recall(stage, runtime, 2, order="again", begun=True)
        wait_until(lambda: stage.pending(job) == [0])
    resumed.join(60)
    assert [output.index for output in stage.results(job)] == [1]
    assert stage.pending(job) == [0]


@pytest.mark.parametrize(("deadline_s", "moved"), [(20.0, [2]), (600.0, [0, 1, 2])])
def test_what_runs_stays_near_its_deadline(stage, runtime, run, deadline_s, moved):
    """Pending, it would end without its text so far. What has not begun has none."""
    with run(*[request()] * 3, deadline_s=deadline_s) as job:
        recall(stage, runtime, 3, begun=True)
        wait_until(lambda: stage.pending(job) == moved)
    assert len(stage.results(job)) == 3 - len(moved)


def test_where_nothing_waits_nothing_is_given_back(stage, runtime, run):
    with run(*[request()] * 2) as job:
        recall(stage, runtime, 2)
    assert len(stage.results(job)) == 2
    assert stage.session("s").given_back == 0


def test_a_batch_that_is_given_back_as_a_whole_has_ended(stage, runtime, run):
    with run(*[request()] * 2), run(*[request()] * 2, job="second") as second:
        recall(stage, runtime, 2)
        wait_until(lambda: stage.pending(second) == [0, 1])
        wait_until(lambda: stage.session("s").batches == 1)
    assert stage.results(second) == []


def test_what_has_come_just_now_stays(stage, runtime, run, monkeypatch):
    monkeypatch.setattr(in_hand, "SETTLE_S", 60.0)
    with run(*[request()] * 3) as job:
        recall(stage, runtime, 1)
    assert len(stage.results(job)) == 3


def test_suspects_stay(stage, runtime, app, run):
    job = stage.job(1, last=False)
    other = stage.worker("gpu1@host")
    stage.ledger.release(stage.batch(other, job, [0]), job, other, count_attempt=True)
    with run(*[request()] * 2):
        suspect = threading.Thread(
            target=execute_batch, args=(app, runtime, stage.batch("s", job, [0], claimed=False), job)
        )
        suspect.start()
        wait_until(lambda: runtime.seat.view().load.waiting == 1)
        recall(stage, runtime, 1)
    suspect.join(60)
    assert len(stage.results(job)) == 1


def test_an_order_that_is_given_twice_takes_once(stage, runtime, run):
    with run(*[request()] * 6) as job:
        recall(stage, runtime, 1)
        assert not stage.ledger.recall(LEADER, "s", "order", 1)
        wait_until(lambda: stage.pending(job) == [5])
    assert len(stage.results(job)) == 5


def test_an_order_whose_answer_is_lost_does_nothing(stage, runtime, run):
    with run(*[request()] * 3) as job:
        stage.ledger.recall(LEADER, "s", "order", 1)
        stage.sessions.beat("s", NAME, heartbeat(slots=SLOTS))  # the worker does not hear of this beat
        recall(stage, runtime, 1, order="again")
        wait_until(lambda: stage.pending(job) == [2])
    assert len(stage.results(job)) == 2


def test_text_that_streams_beside_it_stays_whole_and_all_kinds_are_given_back(stage, runtime, run):
    streams, several = request(stream=True), request(n=2)
    withdraw = runtime.loop.withdraw

    def between_texts(batch, index):
        """New text of the others comes just then."""
        inbox = runtime.in_hand._tickets[batch].inbox
        wait_until(lambda: not inbox._queue.empty())
        return withdraw(batch, index)

    with run(streams, streams, several, streams) as job:
        wait_until(lambda: stage.has_key(stage.keys.job(job).deltas))
        runtime.loop.withdraw = between_texts
        recall(stage, runtime, 2)
        wait_until(lambda: stage.pending(job) == [2, 3])
    outputs = {output.index: output.text for output in stage.results(job)}
    texts = dict.fromkeys(outputs, "")
    for _, fields in stage.redis.xrange(stage.keys.job(job).deltas):
        delta = codec.decode(TextDelta, fields[b"d"])
        assert delta.offset == len(texts[delta.index])
        texts[delta.index] += delta.text
    assert set(outputs) == {0, 1}
    assert all(text and outputs[index].startswith(text) for index, text in texts.items())


def test_one_that_ends_just_then_is_answered_and_not_given_back(stage, runtime, engine, run):
    """It had waited when the order came, and was through before its batch got to it."""
    with run(request(), request(), request(), request(1000)) as job:
        batch_id = stage.queries.batches("s")[0].id
        withdraw = runtime.loop.withdraw

        def late(batch, index):
            engine.hurry()
            wait_until(lambda: f"{batch}/{index}" not in runtime.loop._waiting)
            return withdraw(batch, index)

        runtime.loop.withdraw = late
        assert runtime.in_hand.recall([(batch_id, 2)], 1) == 1
    assert sorted(output.index for output in stage.results(job)) == [0, 1, 2, 3]
    assert stage.pending(job) == []
    assert stage.session("s").given_back == 0


def test_one_whose_end_comes_after_it_was_given_back_is_run_elsewhere(stage, runtime, run):
    """Its completion was on its way from the engine to the batch."""
    with run(*[request()] * 4) as job:
        runtime.loop.withdraw = lambda _batch, _index: None
        recall(stage, runtime, 1)
        wait_until(lambda: stage.pending(job) == [3])
    assert sorted(output.index for output in stage.results(job)) == [0, 1, 2]
    assert stage.pending(job) == [3]


def test_one_that_dies_between_taking_back_and_releasing_loses_nothing(stage, runtime, run, monkeypatch):
    released = threading.Event()

    class Killed(BaseException):
        pass

    def die(*_, **__):
        released.set()
        raise Killed

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(runtime.store.ledger, "release", die)
    with run(*[request()] * 5) as job:
        recall(stage, runtime, 3)
        assert released.wait(60)
    stage.kill("s", Cause.LOST)
    recovery = Recovery(stage.store, DetectorLimits(), SystemClock())
    recovery.recover(stage.sessions.table(), trust_silence=True, trust_absence=True)
    assert stage.pending(job) == [0, 1, 2, 3, 4]
    assert not stage.has_key(stage.keys.job(job).attempts)
    monkeypatch.undo()


def test_one_that_is_fenced_meanwhile_takes_nothing_from_the_next_owner(stage, runtime, run, monkeypatch):
    withdraw, other = runtime.loop.withdraw, stage.worker("gpu1@host")

    def fenced(batch, index):
        """Before the worker can release it, the leader has given it to another."""
        if stage.session("s").state != "dead":
            stage.kill("s", Cause.LOST)
            for record in stage.queries.batches("s"):
                stage.ledger.release_batch(record, count_attempt=False)
            stage.batch(other, "j", stage.pending("j"))
        return withdraw(batch, index)

    monkeypatch.setattr("gpu_worker.orders.end_process", lambda *_: None)
    runtime.loop.withdraw = fenced
    with run(*[request()] * 4) as job:
        recall(stage, runtime, 2)
    assert set(stage.assigned(job)) | {output.index for output in stage.results(job)} == {0, 1, 2, 3}
    assert stage.pending(job) == []


def test_a_higher_priority_begins_before_what_waits_in_the_worker(stage, runtime, run, app):
    with run(*[request()] * 4, job="low"):
        stage.ledger.submit("high", "", [request()], offset=0, last=False, priority=10)
        batch = stage.batch("s", "high", [0], claimed=False)
        urgent = threading.Thread(target=execute_batch, args=(app, runtime, batch, "high"))
        urgent.start()
        wait_until(lambda: len(runtime.loop.movable()) == 3)
        assert runtime.loop.movable()[0] == (batch, 0)
    urgent.join(60)
    assert [output.index for output in stage.results("high")] == [0]
    assert sorted(output.index for output in stage.results("low")) == [0, 1, 2, 3]

import queue
import threading

import pytest

from broker.deltas import TextDelta
from broker.messages import FinishReason, Request, SamplingParams
from broker.records import ClaimedRequest
from gpu_worker import engine_loop
from gpu_worker.engine.base import Completion
from gpu_worker.engine_loop import EngineLoop
from gpu_worker.inbox import Inbox
from tests.support.waiting import wait_until


class FakeEngine:
    """Finishes what the test says, when it says so."""

    def __init__(self):
        self.held = {}
        self.tokens = {}
        self.texts = {}
        self.asked = []  # whose text was wanted
        self.closed = 0
        self.said = queue.SimpleQueue()
        self.steps = 0

    def submit(self, request_id, request, *, generated=()):
        self.held[request_id] = (request, generated)

    def step(self, timeout_s):
        self.steps += 1
        try:
            said = self.said.get(timeout=min(timeout_s, 0.01))
        except queue.Empty:
            return []
        if isinstance(said, BaseException):
            raise said
        return [completion(request_id) for request_id in said]

    def cancel(self, request_id):
        if (held := self.held.pop(request_id, None)) is None:
            return None
        return completion(request_id, FinishReason.LENGTH, self.tokens.get(request_id, held[1]))

    def not_begun(self):
        return tuple(request_id for request_id in self.held if request_id not in self.tokens)

    def generated(self, request_id):
        return self.tokens.get(request_id, ())

    def text(self, request_id):
        self.asked.append(request_id)
        return self.texts.get(request_id, "")

    def close(self):
        self.closed += 1


def completion(request_id, reason=FinishReason.STOP, tokens=()):
    return Completion(request_id=request_id, text=request_id, token_ids=tokens, finish_reason=reason)


def claimed(index, *, max_tokens=100, generated=(), stream=False):
    request = Request(prompt="x", params=SamplingParams(max_tokens=max_tokens), stream=stream)
    return ClaimedRequest(index=index, request=request, generated=generated)


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def deaths():
    return []


@pytest.fixture
def make_loop(engine, deaths, monkeypatch):
    monkeypatch.setattr(engine_loop, "CHECKPOINT_LOOK_S", 0.0)
    monkeypatch.setattr(engine_loop, "TEXT_LOOK_S", 0.0)
    loops = []

    def make(checkpoint_tokens=0):
        loop = EngineLoop(engine, checkpoint_tokens, deaths.append)
        loops.append(loop)
        loop.start()
        return loop

    yield make
    for loop in loops:
        loop.stop()


def completed(inbox, timeout_s=60.0):
    return {index: item.text for index, item in inbox.take(timeout_s).completed.items()}


def test_requests_go_to_the_engine_under_names_of_their_own(make_loop, engine):
    loop = make_loop()
    loop.submit("b1", [claimed(0, generated=(7,)), claimed(3)], Inbox())
    loop.submit("b2", [claimed(0)], Inbox())
    assert sorted(engine.held) == ["b1/0", "b1/3", "b2/0"]
    assert engine.held["b1/0"][1] == (7,)


def test_a_higher_priority_begins_before_what_has_not_begun(make_loop, engine):
    """Of the same or a higher one nothing is overtaken; what has begun goes on."""
    loop = make_loop()
    loop.submit("a", [claimed(0), claimed(1)], Inbox())
    loop.submit("b", [claimed(0, generated=(7, 8))], Inbox(), priority=-10)
    engine.tokens["a/0"] = (1,)
    loop.submit("c", [claimed(0)], Inbox(), priority=10)
    assert list(engine.held) == ["a/0", "c/0", "a/1", "b/0"]
    loop.submit("d", [claimed(0), claimed(1)], Inbox(), priority=10)
    assert list(engine.held) == ["a/0", "c/0", "d/0", "d/1", "a/1", "b/0"]
    loop.submit("e", [claimed(0)], Inbox())
    assert list(engine.held) == ["a/0", "c/0", "d/0", "d/1", "a/1", "e/0", "b/0"]
    assert engine.held["b/0"][1] == (7, 8), "what an earlier run has generated is kept"


def test_who_has_waited_for_long_is_not_overtaken_any_more(make_loop, engine, monkeypatch):
    monkeypatch.setattr(engine_loop, "OVERTAKEN_FOR_S", 0.0)
    loop = make_loop()
    loop.submit("a", [claimed(0)], Inbox())
    loop.submit("b", [claimed(0)], Inbox(), priority=10)
    assert list(engine.held) == ["a/0", "b/0"]


def test_what_was_overtaken_is_heard_of_and_can_be_withdrawn(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("a", [claimed(0), claimed(1)], inbox)
    loop.submit("b", [claimed(0)], Inbox(), priority=10)
    engine.said.put(["a/0"])
    assert completed(inbox) == {0: "a/0"}
    assert loop.withdraw("a", 1).text == "a/1"
    assert "a/1" not in engine.held


def test_what_ends_while_it_is_taken_back_is_left_alone(make_loop, engine, monkeypatch):
    loop = make_loop()
    loop.submit("a", [claimed(0)], Inbox())
    monkeypatch.setattr(engine, "not_begun", lambda: ("a/0", "unknown"))
    del engine.held["a/0"]
    loop.submit("b", [claimed(0)], Inbox(), priority=10)
    assert list(engine.held) == ["b/0"]


def test_what_was_overtaken_is_put_back_also_where_the_rest_fails(make_loop, engine, monkeypatch):
    loop = make_loop()
    loop.submit("a", [claimed(0)], Inbox())
    submit = engine.submit

    def refuse(request_id, request, *, generated=()):
        if request_id == "b/0":
            raise RuntimeError("no")
        submit(request_id, request, generated=generated)

    monkeypatch.setattr(engine, "submit", refuse)
    with pytest.raises(RuntimeError):
        loop.submit("b", [claimed(0)], Inbox(), priority=10)
    assert list(engine.held) == ["a/0"]


def test_each_batch_hears_of_its_own(make_loop, engine):
    loop, one, other = make_loop(), Inbox(), Inbox()
    loop.submit("b1", [claimed(4)], one)
    loop.submit("b2", [claimed(4)], other)
    engine.said.put(["b2/4"])
    assert completed(other) == {4: "b2/4"}
    engine.said.put(["b1/4"])
    assert completed(one) == {4: "b1/4"}


def test_what_ends_in_one_step_comes_together(make_loop, engine, monkeypatch):
    sizes, complete = [], Inbox.complete
    monkeypatch.setattr(Inbox, "complete", lambda self, ended: sizes.append(len(ended)) or complete(self, ended))
    loop, one, other = make_loop(), Inbox(), Inbox()
    loop.submit("b1", [claimed(index) for index in range(50)], one)
    loop.submit("b2", [claimed(0)], other)
    engine.said.put([*(f"b1/{index}" for index in range(50)), "b2/0"])
    assert sorted(one.take(60).completed) == list(range(50))
    assert completed(other) == {0: "b2/0"}
    assert sizes == [50, 1]


def test_what_nobody_waits_for_is_dropped(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("b", [claimed(0)], inbox)
    engine.said.put(["unknown/1", "b/0"])
    assert completed(inbox) == {0: "b/0"}


def test_a_withdrawn_request_gives_what_it_had_and_is_heard_of_no_more(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("b", [claimed(0), claimed(1)], inbox)
    assert loop.withdraw("b", 0).finish_reason == FinishReason.LENGTH
    assert "b/0" not in engine.held
    engine.said.put(["b/0", "b/1"])
    assert completed(inbox) == {1: "b/1"}


def test_a_request_that_has_ended_cannot_be_withdrawn(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("b", [claimed(0)], inbox)
    engine.said.put(["b/0"])
    completed(inbox)
    assert loop.withdraw("b", 0) is None
    assert loop.withdraw("b", 9) is None


def saved(inbox):
    return inbox.take(60.0).saved


def test_tokens_are_saved_every_so_often(make_loop, engine):
    loop, inbox = make_loop(checkpoint_tokens=8), Inbox()
    engine.tokens["b/0"] = (1, 2, 3)
    loop.submit("b", [claimed(0)], inbox)
    wait_until(lambda: engine.steps > 3)
    assert inbox.take(0).saved == {}
    engine.tokens["b/0"] = (1, 2, 3, 4)
    assert saved(inbox) == {0: (1, 2, 3, 4)}
    engine.tokens["b/0"] = tuple(range(8))
    assert saved(inbox) == {0: tuple(range(8))}


def test_no_more_than_wanted_is_ever_unsaved(make_loop, engine):
    loop, inbox = make_loop(checkpoint_tokens=1), Inbox()
    loop.submit("b", [claimed(0)], inbox)
    engine.tokens["b/0"] = (1,)
    assert saved(inbox) == {0: (1,)}


def test_tokens_that_were_saved_before_are_not_saved_again(make_loop, engine):
    loop, inbox = make_loop(checkpoint_tokens=8), Inbox()
    engine.tokens["b/0"] = (1, 2, 3, 4, 5)
    loop.submit("b", [claimed(0, generated=(1, 2, 3, 4))], inbox)
    steps = engine.steps
    wait_until(lambda: engine.steps > steps + 3)
    assert inbox.take(0).saved == {}


@pytest.mark.parametrize(("checkpoint_tokens", "max_tokens"), [(0, 100), (8, 4)])
def test_nothing_is_saved_where_it_is_not_wanted_or_not_worth_it(make_loop, engine, checkpoint_tokens, max_tokens):
    loop, inbox = make_loop(checkpoint_tokens), Inbox()
    engine.tokens["b/0"] = tuple(range(50))
    loop.submit("b", [claimed(0, max_tokens=max_tokens)], inbox)
    steps = engine.steps
    wait_until(lambda: engine.steps > steps + 3)
    assert inbox.take(0).saved == {}


def test_new_text_is_told_of_those_that_stream(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("b", [claimed(0, stream=True), claimed(1)], inbox)
    engine.texts["b/0"] = "Hel"
    assert inbox.take(60.0).texts == {0: TextDelta(index=0, offset=0, text="Hel")}
    engine.texts["b/0"] = "Hello 🙂"
    assert inbox.take(60.0).texts == {0: TextDelta(index=0, offset=3, text="lo 🙂")}
    wait_until(lambda: len(engine.asked) > 5)
    assert inbox.take(0).texts == {}
    assert set(engine.asked) == {"b/0"}


def test_the_text_of_a_resumed_request_is_told_from_its_beginning(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    engine.texts["b/0"] = "all of it"
    loop.submit("b", [claimed(0, generated=(1, 2, 3), stream=True)], inbox)
    assert inbox.take(60.0).texts == {0: TextDelta(index=0, offset=0, text="all of it")}


def test_nothing_is_told_of_a_request_that_is_gone(make_loop, engine):
    loop, inbox = make_loop(), Inbox()
    loop.submit("b", [claimed(0, stream=True), claimed(1, stream=True)], inbox)
    loop.withdraw("b", 0)
    engine.said.put(["b/1"])
    assert completed(inbox) == {1: "b/1"}
    steps = engine.steps
    wait_until(lambda: engine.steps > steps + 3)
    asked = len(engine.asked)
    steps = engine.steps
    wait_until(lambda: engine.steps > steps + 3)
    assert len(engine.asked) == asked


def test_a_dead_engine_is_reported(make_loop, engine, deaths):
    make_loop()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    engine.said.put(error)
    wait_until(lambda: deaths)
    assert deaths == [error]


def test_stop_ends_the_thread_and_closes_the_engine(make_loop, engine):
    loop = make_loop()
    loop.stop()
    loop.stop()
    assert engine.closed == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]
    steps = engine.steps
    assert engine.steps == steps

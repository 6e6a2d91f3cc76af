from concurrent.futures import Future

import pytest

from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.openai_events import Event
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_queue import ServerQueue
from gpu_worker.engine.openai_wire import Call


class Streams:
    """Opens nothing, and remembers what it was to open."""

    def __init__(self):
        self.opened = []

    def open(self, held, listener):
        future = Future()
        self.opened.append((held, future))
        return future

    @property
    def open_ids(self):
        return [held.request_id for held, future in self.opened if not future.cancelled()]


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def queue(streams):
    made = ServerQueue(streams, slots=2, kv_tokens=100, context_tokens=80)
    made.resume()
    return made


def held(request_id, tokens=10):
    request = Request(params=SamplingParams(max_tokens=tokens), prompt="p")
    return HeldCall(request_id=request_id, request=request, call=Call(path="", body={}), prompt_ids=(1, 2))


def test_they_run_in_the_order_of_their_coming_as_there_is_room(queue, streams):
    for name in "abc":
        queue.add(held(name))
    queue.add(held("a"))
    assert streams.open_ids == ["a", "b"]
    assert (queue.load.running, queue.load.waiting) == (2, 1)
    queue.end(streams.opened[1][0], None)
    assert streams.open_ids == ["a", "b", "c"]
    assert [completion.request_id for completion in queue.take()] == ["b"]
    assert queue.take() == []


def test_one_that_is_larger_than_all_room_runs_alone(queue, streams):
    queue.add(held("a"))
    queue.add(held("large", tokens=200))
    queue.add(held("b"))
    assert streams.open_ids == ["a"]
    queue.end(streams.opened[0][0], None)
    assert streams.open_ids == ["a", "large"]


def test_a_pause_lets_all_begin_again_and_late_events_do_not_reach_them(queue, streams):
    for name in "ab":
        queue.add(held(name))
    before = [item for item, _ in streams.opened]
    queue.grow(before[0], Event(text="x"))
    queue.pause()
    assert streams.open_ids == []
    queue.grow(before[0], Event(text="late"))
    queue.end(before[1], None)
    assert queue.take() == []
    queue.resume()
    assert streams.open_ids == ["a", "b"]
    assert queue.drop("a").text == ""


def test_a_stream_that_begins_once_more_forgets_its_text_but_not_that_of_a_dropped_one(queue, streams):
    queue.add(held("a"))
    running = streams.opened[0][0]
    queue.grow(running, Event(text="x", finish_reason=FinishReason.STOP))
    queue.begin(running)
    assert (running.text, running.tokens) == ("", 0)
    queue.grow(running, Event(text="y"))
    assert queue.drop("a").text == "y"
    queue.begin(running)
    assert running.text == "y"


def test_a_smaller_room_holds_back_the_latest_and_is_refused_where_one_would_never_run(queue, streams):
    queue.add(held("a", tokens=40))
    queue.add(held("b", tokens=40))
    with pytest.raises(NoRoomError, match="a request in hand may need 42"):
        queue.resize(slots=0, kv_tokens=41)
    queue.resize(slots=0, kv_tokens=42)
    assert streams.open_ids == ["a"]
    assert queue.capacity.context_tokens == 42
    queue.resize(slots=0, kv_tokens=1000)
    assert streams.open_ids == ["a", "b"]
    assert queue.capacity.context_tokens == 80


def test_a_failure_is_the_completion(queue, streams):
    queue.add(held("a"))
    queue.end(streams.opened[0][0], failure("a", "engine_error", "gone"))
    assert queue.wait(0.0)
    (completion,) = queue.take()
    assert completion.error.code == "engine_error"


def test_a_closed_one_sends_nothing_more(queue, streams):
    queue.add(held("a"))
    queue.close()
    queue.add(held("b"))
    queue.end(streams.opened[0][0], None)
    assert streams.open_ids == ["a"]
    assert queue.take() == []


def test_what_waits_for_room_was_not_sent(queue, streams):
    for name in "abcd":
        queue.add(held(name))
    assert queue.unsent == ("c", "d")
    queue.drop("c")
    queue.end(streams.opened[0][0], None)
    assert queue.unsent == ()

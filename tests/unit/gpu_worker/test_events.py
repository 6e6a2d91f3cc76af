from time import monotonic
from types import SimpleNamespace

import pytest
from kombu.asynchronous.timer import Timer

from gpu_worker.events import FLUSH_S, EventsInGroups


class FakeHub:
    """The timer of Celery's event loop."""

    def __init__(self):
        self.timer = Timer()
        self.call_repeatedly = self.timer.call_repeatedly


class FakeDispatcher:
    def __init__(self):
        self.on_send_buffered = lambda: None
        self.flushed = 0

    def flush(self):
        self.flushed += 1


@pytest.fixture
def consumer():
    return SimpleNamespace(hub=FakeHub(), event_dispatcher=FakeDispatcher(), steps=[])


@pytest.fixture
def step(consumer):
    return EventsInGroups(consumer)


def test_events_go_out_by_the_clock_and_not_at_once(consumer, step):
    step.start(consumer)
    assert consumer.event_dispatcher.on_send_buffered is None
    (entry,) = consumer.hub.timer.queue
    assert entry.eta <= monotonic() + FLUSH_S
    entry.entry()
    assert consumer.event_dispatcher.flushed == 1


def test_what_is_left_goes_out_at_the_end(consumer, step):
    step.start(consumer)
    (entry,) = consumer.hub.timer.queue
    step.stop(consumer)
    step.stop(consumer)
    assert entry.entry.canceled
    assert consumer.event_dispatcher.flushed == 1


def test_a_pool_without_an_event_loop_sends_them_at_once(consumer, step):
    consumer.hub = None
    step.start(consumer)
    step.stop(consumer)
    assert consumer.event_dispatcher.on_send_buffered is not None
    assert consumer.event_dispatcher.flushed == 0

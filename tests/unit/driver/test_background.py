import threading

import pytest

from driver import background
from driver.background import Background


@pytest.fixture
def blocked():
    """What a call to a Redis that stands still waits for."""
    event = threading.Event()
    yield event
    event.set()


def test_a_loop_runs_until_it_is_asked_to_end():
    stopped = threading.Event()
    loop = Background("x", stopped.wait, stopped.set)
    loop.start()
    loop.stop()
    loop.stop()
    loop.wait()
    assert loop.join()


def test_one_that_ends_by_itself_is_waited_for():
    loop = Background("x", lambda: None, lambda: None)
    loop.start()
    loop.wait()
    assert loop.join()


def test_one_that_an_interrupt_kept_from_its_start_has_ended():
    loop = Background("x", lambda: None, lambda: None)
    loop.stop()
    assert loop.join()


def test_one_that_does_not_end_holds_up_nobody(blocked, monkeypatch):
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)
    loop = Background("x", blocked.wait, lambda: None)
    loop.start()
    loop.stop()
    loop.wait()
    assert not loop.join()

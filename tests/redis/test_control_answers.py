"""Answers of run-time control that come late."""

import contextlib
import threading

import pytest

from broker.commands import MemoryUse, Refusal
from driver.control import WorkerControl

NAME = "gpu0@host"


class Slow:
    """Answers as a worker does, one command after the other, each after a while."""

    def __init__(self, app, seconds):
        self.seen = []
        self._seconds = seconds
        self._stopped = threading.Event()
        self._connection = app.connection_for_read()
        handlers = {"ping": self._ping, "memory": self._memory}
        node = app.control.mailbox.Node(NAME, channel=self._connection.channel(), handlers=handlers)
        node.listen(callback=node.handle_message)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _ping(self, _state):
        self._stopped.wait(self._seconds)
        self.seen.append("ping")
        return {"ok": "pong"}

    def _memory(self, _state):
        self._stopped.wait(self._seconds)
        self.seen.append("memory")
        return {"error": "this is the answer", "code": "mine"}

    def _run(self):
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=0.05)


@pytest.fixture
def control(store):
    made = WorkerControl(store)
    yield made
    made.close()


@pytest.fixture
def slow(app):
    worker = Slow(app, 0.6)
    yield worker
    worker.stop()


def test_an_answer_that_comes_late_is_not_taken_for_another(control, slow):
    answers = control.ask([NAME], MemoryUse(), timeout_s=60.0)
    assert answers == {NAME: Refusal(error="this is the answer", code="mine")}
    assert slow.seen.count("memory") == 1

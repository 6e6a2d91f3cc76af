"""Sends Celery's events to monitors in groups, a few times a second: no request waits while they are published."""

from typing import Any

from celery import bootsteps

FLUSH_S = 0.2


class EventsInGroups(bootsteps.StartStopStep):
    """A step of Celery's consumer. Without it each event is published at once, by the thread that takes messages."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **_: Any) -> None:
        """Steps are made by Celery."""
        super().__init__(consumer)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        """Flush by the clock. A pool without an event loop has no buffer to flush."""
        if parent.hub is not None and parent.event_dispatcher is not None:
            parent.event_dispatcher.on_send_buffered = None
            self._timer = parent.hub.call_repeatedly(FLUSH_S, parent.event_dispatcher.flush)

    def stop(self, parent: Any) -> None:
        """Send what is left; without a connection it is kept for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            parent.event_dispatcher.flush()

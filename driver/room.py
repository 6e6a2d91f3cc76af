"""Waits for room while the queue is full: a while, told by the ledger, and says once that it waits."""

import logging

from broker.clock import Clock, SystemClock
from broker.errors import QueueFullError

logger = logging.getLogger("stoker")

MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0  # the speed may change, and others may go


class Room:
    """Waits between tries to submit; with `limit_s`, no longer than so many seconds in all."""

    def __init__(self, limit_s: float | None = None, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._limit_s = limit_s
        self._waited_s = 0.0
        self._waits = False

    def wait(self, full: QueueFullError) -> None:
        """Wait a while before the next try.

        Raises:
            QueueFullError: the time is up.
        """
        pause_s = MAX_PAUSE_S if full.retry_after_s is None else full.retry_after_s
        pause_s = min(max(pause_s, MIN_PAUSE_S), MAX_PAUSE_S)
        if self._limit_s is not None:
            if self._waited_s >= self._limit_s:
                raise full
            pause_s = min(pause_s, self._limit_s - self._waited_s)
        if not self._waits:
            logger.info("waiting: %s", full)
        self._waits = True
        self._clock.sleep(pause_s)
        self._waited_s += pause_s

    def found(self) -> None:
        """There was room; the next time that there is none, say so again."""
        self._waits = False

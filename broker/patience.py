"""Waits out an outage of Redis: calls again until there is an answer."""

import logging
from collections.abc import Callable
from typing import TypeVar

from broker.clock import Clock, SystemClock
from broker.errors import BrokerUnavailableError, StokerError

logger = logging.getLogger("stoker")

ReplyT = TypeVar("ReplyT")

PAUSES_S = (0.1, 0.2, 0.5, 1.0)


class Patience:
    """Calls until Redis answers; says once that it waits, and once that it goes on.

    With `limit_s` it gives up after so many seconds and raises the last error.
    """

    def __init__(self, limit_s: float | None = None, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._limit_s = limit_s

    def __call__(self, call: Callable[[], ReplyT]) -> ReplyT:
        """The call's answer.

        Raises:
            BrokerUnavailableError: there was none within the limit.
        """
        started_s = self._clock.now_s()
        attempt = 0
        while True:
            try:
                reply = call()
            except BrokerUnavailableError as error:
                self._give_up_late(error, started_s)
                if attempt == 0:
                    logger.warning("waiting: %s", error)
                self._clock.sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
                attempt += 1
            else:
                if attempt:
                    logger.warning("Redis answers again")
                return reply

    def _give_up_late(self, error: StokerError, started_s: float) -> None:
        if self._limit_s is not None and self._clock.now_s() - started_s >= self._limit_s:
            raise error

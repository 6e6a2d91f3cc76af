"""Whether a worker is fit for work: it is set aside when everything fails in it, or its GPU says that it is broken.

A broken GPU fails everything at once, and so would drain the queue faster than its healthy neighbours.
"""

import logging
from collections.abc import Callable

from broker.later import call_later
from gpu_worker.exits import EXIT_ENGINE, end_process
from gpu_worker.in_hand import InHand
from gpu_worker.standing import Standing

logger = logging.getLogger(__name__)


class Fitness:
    """Any thread may note what becomes of requests.

    After `failure_limit` failures in a row the worker is set aside, and after `pause_s` seconds more its process ends:
    a fresh one may be well. `tell` lets the driver know.
    """

    def __init__(
        self, failure_limit: int, pause_s: float, standing: Standing, in_hand: InHand, tell: Callable[[], object]
    ) -> None:
        self._failure_limit = failure_limit
        self._pause_s = pause_s
        self._standing = standing
        self._in_hand = in_hand
        self._tell = tell
        self._failed_in_row: set[tuple[str, int]] = set()

    def note_success(self) -> None:
        """The engine has generated for a request."""
        self._failed_in_row.clear()

    def note_failure(self, job_id: str, index: int, message: str) -> None:
        """The engine has failed a request. The same one again says nothing new: the fault may be its own."""
        self._failed_in_row.add((job_id, index))
        failed = len(self._failed_in_row)
        if failed >= self._failure_limit:
            self.set_aside(f"failed {failed} requests in a row, the last with: {message}")

    def set_aside(self, reason: str) -> None:
        """Give back what is in hand, take nothing more, and end the process after the pause."""
        if not self._standing.set_aside(reason):
            return
        logger.error("set aside: %s", reason)
        self._tell()
        self._in_hand.wake_all()
        call_later(self._pause_s, lambda: end_process(EXIT_ENGINE, f"set aside: {reason}"))

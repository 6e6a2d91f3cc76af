"""The job of one model in a batch run: the lines that wait for their outputs, and the reader of those."""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from broker.errors import JobNotFoundError, StokerError
from broker.messages import Output
from broker.patience import Patience
from driver.batch_file import BatchLine
from driver.client import Client
from driver.feed import JobFeed

logger = logging.getLogger("stoker")

TOUCH_S = 60.0  # well below the time after which the driver takes the client of an open job for gone


class BatchFeed:
    """Lines of one model on their way through the ledger. It waits out an outage of Redis.

    If the job is gone, or was sealed by somebody else, a new one is begun for the lines that have no answer yet.
    """

    def __init__(self, client: Client, model: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.waiting: dict[int, BatchLine] = {}
        self._client = client
        self._now_s = now_s
        self._insist = Patience()
        self._sealed = False
        self._open_job()

    @property
    def job_id(self) -> str:
        """The job that has the lines now."""
        return self._feed.job_id

    def add(self, lines: Sequence[BatchLine]) -> None:
        """Submit lines."""
        for index, line in enumerate(lines, start=self._feed.submitted):
            self.waiting[index] = line
        self._touch(lambda: self._feed.add(line.request for line in lines))

    def seal(self) -> None:
        """Say that no more lines follow."""
        self._sealed = True
        self._touch(self._feed.seal)

    def read(self, timeout_s: float) -> list[tuple[BatchLine, Output]]:
        """The next answers, waiting up to `timeout_s` seconds for the first."""
        outputs = self._insist(lambda: self._stream.read(timeout_s))
        return [(self.waiting.pop(output.index), output) for output in outputs]

    def forget_read(self) -> None:
        """Trim what was read, once it is written."""
        self._insist(self._stream.trim)

    def keep_open(self) -> None:
        """Every minute, tell the ledger that this client is there, and see that the job is."""
        if self._now_s() - self._touched_s >= TOUCH_S:
            self._touch(self._feed.keep_open)

    def cancel(self) -> None:
        """Take what has no answer out of the ledger.

        Raises:
            StokerError: it could not be.
        """
        self._client.job(self.job_id).cancel()

    def _touch(self, call: Callable[[], None]) -> None:
        self._touched_s = self._now_s()
        try:
            call()
        except JobNotFoundError as error:
            logger.warning("%s; %d lines are submitted again", error, len(self.waiting))
            self._begin_anew()

    def _begin_anew(self) -> None:
        with contextlib.suppress(StokerError):  # if it was only sealed, nothing of it need run twice
            self.cancel()
        lines = list(self.waiting.values())
        self._open_job()
        self.waiting = dict(enumerate(lines))
        self._feed.add(line.request for line in lines)
        if self._sealed:
            self._feed.seal()

    def _open_job(self) -> None:
        self._touched_s = self._now_s()
        self._feed = JobFeed(self._client.store.ledger, str(uuid.uuid4()), self.model, insist=self._insist)
        self._stream = self._client.store.outputs(self._feed.job_id)

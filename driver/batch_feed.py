"""The job of one model in a batch run: the lines that wait for their outputs, and the reader of those."""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from broker.errors import JobNotFoundError, QueueFullError, StokerError
from broker.messages import Output
from broker.patience import Patience
from driver.batch_file import BatchLine
from driver.client import Client
from driver.feed import JobFeed
from driver.job_options import priority_number, refuse_wrong_options

logger = logging.getLogger("stoker")

TOUCH_S = 60.0


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """In which class jobs wait, whose share of the workers they use, and how much of it beside the user's other jobs.

    Raises:
        InvalidRequestError: one of these is not what it should be.
    """

    priority: int = 0
    user: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what does not fit before anything is read or started."""
        priority_number(self.priority)
        refuse_wrong_options("", None, self.user, self.weight)


class BatchFeed:
    """Lines of one model on their way through the ledger. It waits out an outage of Redis.

    If the job is gone, or was sealed by somebody else, a new one is begun for the lines that have no answer yet.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        share: Share | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self._share = share or Share()
        self.waiting: dict[int, BatchLine] = {}
        self.held: list[BatchLine] = []  # there was no room for them yet
        self.full: QueueFullError | None = None  # why not
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
        """Submit lines, as many of them as there is room for; the rest is `held`, and `full` says why.

        Raises:
            ExceedsLimitError: the first of the held lines is larger than a limit allows at all.
        """
        self.held = [*self.held, *lines]
        self.add_held()

    def add_held(self) -> None:
        """Submit what is held, as far as there is room for it now.

        Raises:
            ExceedsLimitError: the first of the held lines is larger than a limit allows at all.
        """
        if self.held:
            self._touch(self._offer_held)

    def take_first_held(self) -> BatchLine:
        """Give up the first of the held lines."""
        return self.held.pop(0)

    def seal(self) -> None:
        """Say that no more lines follow; if some are held, the job is sealed once they are in."""
        self._sealed = True
        if not self.held:
            self._touch(self._feed.seal)

    def read(self, timeout_s: float) -> list[tuple[BatchLine, Output]]:
        """The next answers, waiting up to `timeout_s` seconds for the first."""
        outputs = self._insist(lambda: self._stream.read(timeout_s))
        return [(self.waiting.pop(output.index), output) for output in outputs]

    def forget_read(self) -> None:
        """Trim what was read, once it is written."""
        self._insist(self._stream.trim)

    def keep_open(self) -> None:
        """Every minute, see that the job is still there and open."""
        if self._now_s() - self._touched_s >= TOUCH_S:
            self._touch(self._feed.keep_open)

    def cancel(self) -> None:
        """Take what has no answer out of the ledger.

        Raises:
            StokerError: it could not be.
        """
        self._client.job(self.job_id).cancel()

    def _offer_held(self) -> None:
        before = self._feed.submitted
        try:
            self.full = self._feed.offer([line.request for line in self.held])
        finally:
            taken = self._feed.submitted - before
            self.waiting |= dict(enumerate(self.held[:taken], start=before))
            self.held = self.held[taken:]
        if self._sealed and not self.held:
            self._feed.seal()

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
        self.held = [*self.waiting.values(), *self.held]
        self.waiting = {}
        self._open_job()
        self._offer_held()

    def _open_job(self) -> None:
        self._touched_s = self._now_s()
        self._feed = JobFeed(
            self._client.store.ledger,
            str(uuid.uuid4()),
            self.model,
            priority=self._share.priority,
            user=self._share.user,
            weight=float(self._share.weight),
            insist=self._insist,
            leases=self._client.leases,
        )
        self._stream = self._client.store.outputs(self._feed.job_id)

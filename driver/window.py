"""Feeds requests of any number into a job as its outputs come, so that at most a window of them is in the ledger."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from broker.errors import BrokerError, JobNotFoundError
from broker.messages import Output, Request
from broker.results import OutputStream
from driver.feed import JobFeed
from driver.job import Job
from driver.runs import RUN_REQUESTS, next_run

logger = logging.getLogger("stoker")

WINDOW = 2_048


class WindowedOutputs:
    """Outputs of an open job that is fed while they are read. What was read is trimmed at the next read.

    A read that failed can be made again: requests that may or may not have arrived are sent once more, which changes
    nothing the second time.
    """

    def __init__(
        self,
        feed: JobFeed,
        stream: OutputStream,
        requests: Iterator[Request],
        *,
        window: int = WINDOW,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`feed` must not wait for room."""
        self._feed = feed
        self._stream = stream
        self._requests = requests
        self._window = window
        self._now_s = now_s
        self._held: Sequence[Request] = ()  # there was no room for them yet
        self._open = 0  # submitted, and their outputs not read
        self._is_sealed = False
        self._is_slow = False  # the next request is worth more waiting than the next output
        self._said_full = False

    def fill(self) -> None:
        """Submit requests until the window, or the queue, is full; seal the job after the last.

        While requests are slow to come it submits what came, so that outputs can be read in between.

        Raises:
            ExceedsLimitError: a request is larger than a limit allows at all.
            BrokerUnavailableError: Redis does not answer.
        """
        self._is_slow = False
        while not self._is_sealed and not self._is_slow and self._open < self._window:
            if not self._held:
                most = min(RUN_REQUESTS, self._window - self._open)
                self._held, self._is_slow = next_run(self._requests, most, self._now_s)
            if not self._held:
                self._feed.seal()
                self._is_sealed = True
            elif not self._offer():
                return

    def read(self, timeout_s: float) -> list[Output]:
        """The next outputs, waiting up to `timeout_s` seconds for the first."""
        self._stream.trim()
        self.fill()
        outputs = self._stream.read(0.0 if self._is_slow else timeout_s)
        self._open -= len(outputs)
        return outputs

    def has_more(self) -> bool:
        """Whether there are outputs that were not read."""
        return self._stream.has_more()

    def _offer(self) -> bool:
        """Submit what is held, as far as there is room. Whether all of it went."""
        before = self._feed.submitted
        try:
            full = self._feed.offer(self._held)
        finally:
            taken = self._feed.submitted - before
            self._held = self._held[taken:]
            self._open += taken
        if full is not None and not self._said_full:
            logger.info("waiting: %s", full)
        self._said_full = full is not None
        return full is None


def run_to_the_end(job: Job, feed: JobFeed, outputs: WindowedOutputs, timeout: float | None) -> Iterator[Output]:
    """Outputs of a feed's job, up to the last; whoever stops before it cancels the job.

    Raises:
        As `Client.run`.
    """
    try:
        outputs.fill()
        feed.keep_open()  # there is a job, also while there is no room for its first request
        yield from job.follow(outputs, timeout)
    finally:
        feed.let_go()
        with contextlib.suppress(JobNotFoundError, BrokerError):
            job.cancel()  # what is left of it, if anything

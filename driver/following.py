"""Follows a job until it is done: waits out outages of Redis, and says why nothing comes."""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

from broker.errors import BrokerUnavailableError
from broker.messages import Output
from broker.patience import Patience
from broker.records import JobRecord
from broker.states import JobState
from broker.store import Store
from driver.deadline import Deadline
from driver.errors import NotFinishedError

logger = logging.getLogger("stoker")

QUIET_S = 2.0  # after so long without news, look for the reason

ItemT = TypeVar("ItemT")
NewsT = TypeVar("NewsT", covariant=True)
ReplyT = TypeVar("ReplyT")


class Source(Protocol[NewsT]):
    """News of a job, its outputs among them."""

    def read(self, timeout_s: float) -> Sequence[NewsT]:
        """The next news, waiting up to `timeout_s` seconds for the first."""
        ...

    def has_more(self) -> bool:
        """Whether there are outputs that were not read."""
        ...


def follow(
    store: Store,
    job_id: str,
    source: Source[ItemT],
    *,
    obstacle: Callable[[str], str | None],
    late: Callable[[float, str], str],
    timeout: float | None,
) -> Generator[ItemT, None, int]:
    """What a source has to say, until all outputs of the job are among it. Returns how many requests the job has.

    `obstacle` says what keeps a model's requests from running, `late` how far the job is after so many seconds.

    Raises:
        As `Job.as_completed`.
    """
    deadline = Deadline(timeout)
    record = store.queries.job(job_id)
    watch = _SilenceWatch(obstacle, record)
    seen = 0

    def insist(call: Callable[[], ReplyT]) -> ReplyT:
        try:
            return Patience(deadline.left_s)(call)
        except BrokerUnavailableError as error:
            raise NotFinishedError(f"job {job_id} is not done after {timeout:g} s: {error}") from error

    def has_all() -> bool:
        """A sealed job gets no more requests: who has as many outputs need not ask the ledger."""
        return record.state != JobState.OPEN and seen >= record.submitted

    while not has_all():
        news = insist(lambda: source.read(_wait_s(deadline)))
        yield from news
        seen += sum(isinstance(item, Output) for item in news)
        if not has_all() and (not news or seen >= record.submitted):
            record = insist(lambda: store.queries.job(job_id))
        if has_all() or (record.state == JobState.DONE and not insist(source.has_more)):
            break
        if deadline.is_over:
            raise NotFinishedError(late(timeout or 0.0, record.model))
        if news:
            watch.heard()
        else:
            insist(watch.check)
    if record.client_lost and (now := insist(lambda: store.queries.job(job_id))).client_lost:
        raise now.incomplete()  # and not a client that came back meanwhile
    return record.submitted


def collect(news: Generator[ItemT, None, int], found: list[ItemT]) -> int:
    """Add all news to those found, as they come. Returns what the generator returns."""
    while True:
        try:
            found.append(next(news))
        except StopIteration as end:
            return end.value


class _SilenceWatch:
    """Warns when nothing comes, once for each reason."""

    def __init__(self, obstacle: Callable[[str], str | None], job: JobRecord) -> None:
        self._obstacle = obstacle
        self._job = job
        self._heard_s = time.monotonic()
        self._said: str | None = None

    def heard(self) -> None:
        self._heard_s = time.monotonic()
        self._said = None

    def check(self) -> None:
        if time.monotonic() - self._heard_s < QUIET_S:
            return
        self._heard_s = time.monotonic()
        reason = self._obstacle(self._job.model)
        if reason is not None and reason != self._said:
            logger.warning("job %s waits: %s", self._job.id, reason)
        self._said = reason


def _wait_s(deadline: Deadline) -> float:
    left_s = deadline.left_s
    return QUIET_S / 4 if left_s is None else min(left_s, QUIET_S / 4)

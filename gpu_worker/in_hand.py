"""The batches that a worker has in hand, and what each is told to do before its requests are through."""

import threading
import time
from collections.abc import Sequence

from gpu_worker.inbox import Inbox

# So long what has come stays: a request that was given back to be run elsewhere is not sent around.
SETTLE_S = 2.0
# So near to its deadline what runs stays: while it waits to go on elsewhere it could end without its text so far.
NEAR_END_S = 30.0


class Ticket:
    """One batch in hand. The flag is set by other threads; the inbox is woken so that the batch sees it.

    `suspects` are requests that were part of a death: they are where the driver wants them.
    """

    def __init__(self, batch_id: str, job_id: str) -> None:
        self.batch_id = batch_id
        self.job_id = job_id
        self.inbox = Inbox()
        self.cancelled = False
        self.suspects: frozenset[int] = frozenset()
        self.taken_s = time.monotonic()
        self.end_s = float("inf")  # when the job's deadline is

    def cancel(self) -> None:
        """The job was cancelled."""
        self.cancelled = True
        self.inbox.wake()


class InHand:
    """All batches in hand. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self._tickets: dict[str, Ticket] = {}
        self.given_back = 0  # requests, for other workers, in this session

    def take(self, batch_id: str, job_id: str) -> Ticket | None:
        """Take a batch in hand; None when it is already: Celery delivers a running task again after a blip."""
        with self._lock:
            if batch_id in self._tickets:
                return None
            ticket = self._tickets[batch_id] = Ticket(batch_id, job_id)
            return ticket

    def drop(self, ticket: Ticket) -> None:
        """Let a batch go."""
        with self._lock:
            self._tickets.pop(ticket.batch_id, None)
            self._lock.notify_all()

    def __len__(self) -> int:
        return len(self._tickets)

    def is_empty(self, timeout_s: float) -> bool:
        """Wait so long for no batch to be in hand."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._tickets, timeout_s)

    def job_ids(self) -> list[str]:
        """The jobs that have a batch in hand."""
        with self._lock:
            return sorted({ticket.job_id for ticket in self._tickets.values()})

    def cancel_jobs(self, job_ids: set[str]) -> None:
        """Tell the batches of these jobs that their job was cancelled."""
        for ticket in self._all():
            if ticket.job_id in job_ids and not ticket.cancelled:
                ticket.cancel()

    def unhurried(self) -> set[str]:
        """The batches whose deadline, if they have one, is far enough away that what runs of them may move."""
        near_s = time.monotonic() + NEAR_END_S
        return {ticket.batch_id for ticket in self._all() if ticket.end_s > near_s}

    def recall(self, line: Sequence[tuple[str, int]], count: int) -> int:
        """Tell batches to give back so many of these requests: batch and index, in the order in which they begin.

        It is the last ones, and none that has come just now. Returns how many were found.
        """
        settled_s = time.monotonic() - SETTLE_S
        tickets = {ticket.batch_id: ticket for ticket in self._all() if ticket.taken_s <= settled_s}
        found = [
            (ticket, index)
            for batch_id, index in line
            if (ticket := tickets.get(batch_id)) is not None and index not in ticket.suspects
        ]
        for ticket, index in found[-count:]:
            ticket.inbox.recall(index)
        return min(count, len(found))

    def note_given_back(self, count: int) -> None:
        """So many requests were given back because others had nothing to do."""
        with self._lock:
            self.given_back += count

    def wake_all(self) -> None:
        """Make every batch look around."""
        for ticket in self._all():
            ticket.inbox.wake()

    def _all(self) -> list[Ticket]:
        with self._lock:
            return list(self._tickets.values())

"""The batches that a worker has in hand, and what each is told to do before its requests are through."""

import threading

from gpu_worker.inbox import Inbox


class Ticket:
    """One batch in hand. The flag is set by other threads; the inbox is woken so that the batch sees it."""

    def __init__(self, batch_id: str, job_id: str) -> None:
        self.batch_id = batch_id
        self.job_id = job_id
        self.inbox = Inbox()
        self.cancelled = False

    def cancel(self) -> None:
        """The job was cancelled."""
        self.cancelled = True
        self.inbox.wake()


class InHand:
    """All batches in hand. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
        self._tickets: dict[str, Ticket] = {}

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

    def wake_all(self) -> None:
        """Make every batch look around."""
        for ticket in self._all():
            ticket.inbox.wake()

    def _all(self) -> list[Ticket]:
        with self._lock:
            return list(self._tickets.values())

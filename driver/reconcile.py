"""Finishes what a crash left half done. Everything here may run twice, or stop at any line, and do no harm."""

import contextlib
import logging
from collections.abc import Iterable, Sequence

from celery import Celery
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError

from broker.celery_app import send_batch
from broker.closing import close_job
from broker.errors import JobNotFoundError
from broker.records import BatchRecord, Session
from broker.states import JobState
from broker.store import Store
from driver.ending import end_pending
from driver.lease import LEASE_S

logger = logging.getLogger(__name__)

UNCLAIMED_AFTER_MS = 5_000  # a message this old that nobody has claimed may be lost; sending it again is harmless
FORGOTTEN_AFTER_MS = 60_000  # a claimed batch this old may be in no worker's hands: Redis lost that it was done
UNCLOSED_AFTER_MS = 2_000  # the worker that committed the last output closes the job itself, and sooner
JOBS_PER_PASS = 200
PAGES_PER_PASS = 8
ABANDONED_AFTER_MS = int(1000 * LEASE_S)  # so long after it was last heard of, the client of an open job is gone


class Reconciler:
    """Compares what the ledger says with what should have happened since, and makes up for it."""

    def __init__(self, store: Store, app: Celery) -> None:
        self._store = store
        self._app = app
        self._resent_ms: dict[str, int] = {}
        self._seen_jobs = 0
        self._swept = 0

    def reconcile(self, sessions: Sequence[Session], now_ms: int, *, trust_silence: bool = True) -> None:
        """One pass: over everything in hand, and over the next of the open jobs.

        Without `trust_silence` no client is taken for gone: after an outage of Redis all have been silent.
        """
        self._resend_lost(sessions, now_ms)
        self._close_complete(now_ms)
        if trust_silence:
            self._end_abandoned(now_ms)
        self._swept = self._store.sessions.sweep(self._swept)

    def end_stopped(self, job_ids: Iterable[str]) -> None:
        """Give outputs to what waits in jobs that are cancelled or past their deadline."""
        for job_id in job_ids:
            if not self._store.queries.pending_count(job_id):
                continue
            with contextlib.suppress(JobNotFoundError):
                if self._store.queries.job(job_id).cancelled:
                    code, message = "cancelled", "the job was cancelled"
                else:
                    code, message = "deadline_exceeded", "the job's deadline passed before it could run"
                end_pending(self._store, job_id, code, message, pages=PAGES_PER_PASS)

    def _end_abandoned(self, now_ms: int) -> None:
        """End open jobs whose client has vanished; a page of jobs at a time, from where the last pass ended.

        What was submitted is generated. A job that was to be taken as a whole is cancelled if it is not all there:
        nobody knows its id yet.
        """
        jobs = self._store.queries.open_jobs(self._seen_jobs, JOBS_PER_PASS)
        if not jobs:  # only then is it the end: what cannot be read is left out, and makes a page short
            self._seen_jobs, jobs = 0, self._store.queries.open_jobs(0, JOBS_PER_PASS)
        self._seen_jobs += JOBS_PER_PASS
        for job in jobs:
            if job.state != JobState.OPEN or now_ms - job.touched_ms <= ABANDONED_AFTER_MS:
                continue
            if job.reserved_requests:
                logger.warning("job %s: its client is gone; cancelled, as it was not all there", job.id)
                self._store.ledger.cancel(job.id)
            elif self._store.ledger.abandon(job.id, job.touched_ms):
                logger.warning(
                    "job %s is incomplete: its client is gone; sealed after %d requests", job.id, job.submitted
                )

    def _resend_lost(self, sessions: Sequence[Session], now_ms: int) -> None:
        """Send again what was assigned and never claimed, as the message may be lost, and what may be forgotten.

        A worker that has the batch in hand ignores it.
        """
        for session in sessions:
            for batch in self._store.queries.batches(session.id) if session.batches else ():
                if self._is_overdue(session, batch, now_ms):
                    self._resent_ms[batch.id] = now_ms
                    send_batch(self._app, session.worker, batch.id, batch.job)
        self._resent_ms = {key: at for key, at in self._resent_ms.items() if now_ms - at < 2 * FORGOTTEN_AFTER_MS}

    def _close_complete(self, now_ms: int) -> None:
        """Store the results of complete jobs whose worker died before it could."""
        for job_id, completed_ms in self._store.queries.closing_jobs():
            if now_ms - completed_ms >= UNCLOSED_AFTER_MS:
                try:
                    close_job(self._app, self._store, job_id)
                except (CeleryError, KombuError) as error:
                    logger.warning("could not close job %s: %s", job_id, error)

    def _is_overdue(self, session: Session, batch: BatchRecord, now_ms: int) -> bool:
        since_ms = max(batch.assigned_ms, self._resent_ms.get(batch.id, 0))
        is_engine_idle = session.running + session.waiting == 0
        is_soon = batch.state == "assigned" or is_engine_idle
        return now_ms - since_ms >= (UNCLAIMED_AFTER_MS if is_soon else FORGOTTEN_AFTER_MS)

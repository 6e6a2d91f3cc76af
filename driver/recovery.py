"""Finishes what a death left half done. Everything here may run twice, or stop at any line, and do no harm."""

import logging
from collections.abc import Sequence

from celery import Celery
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError

from broker.celery_app import send_batch
from broker.closing import close_job
from broker.ledger import BatchRecord, JobRecord
from broker.sessions import Session
from broker.store import Store
from driver.detector import DetectorLimits, Verdict, judge

logger = logging.getLogger(__name__)

UNCLAIMED_AFTER_MS = 5_000  # a message this old that nobody has claimed may be lost; sending it again is harmless
UNCLOSED_AFTER_MS = 2_000  # the worker that committed the last output closes the job itself, and sooner
ABANDONED_AFTER_MS = 3_600_000  # an open job whose client has not been heard of for so long is sealed as it is


class Recovery:
    """The leader's repairs."""

    def __init__(self, store: Store, app: Celery, limits: DetectorLimits) -> None:
        self._store = store
        self._app = app
        self._limits = limits
        self._resent_ms: dict[str, int] = {}

    def bury_dead(self, sessions: Sequence[Session]) -> int:
        """Release what dead sessions hold, then forget them. Returns requests that are pending again."""
        released = 0
        for session in sessions:
            if judge(session, self._limits) is not Verdict.DEAD:
                continue
            if session.state != "dead":
                reason = f"no heartbeat for {session.beat_age_s:.1f} s"
                if not self._store.sessions.expire(session.id, reason, session.beat_ms):
                    continue  # it has beaten since
            for batch in self._store.ledger.batches(session.id):
                released += self._store.ledger.release(batch, count_attempt=True)
            self._store.sessions.forget(session)
        return released

    def resend_lost(self, sessions: Sequence[Session], now_ms: int) -> None:
        """Send again what was assigned but never claimed: the driver died before sending, or the message was lost."""
        for session in sessions:
            for batch in self._store.ledger.batches(session.id) if session.batches else ():
                if self._is_overdue(batch, now_ms):
                    self._resent_ms[batch.id] = now_ms
                    send_batch(self._app, session.worker, batch.id, batch.job)
        self._resent_ms = {key: at for key, at in self._resent_ms.items() if now_ms - at < 10 * UNCLAIMED_AFTER_MS}

    def close_complete(self, now_ms: int) -> None:
        """Store the results of complete jobs whose worker died before it could."""
        for job_id, completed_ms in self._store.ledger.closing_jobs():
            if now_ms - completed_ms >= UNCLOSED_AFTER_MS:
                try:
                    close_job(self._app, self._store, job_id)
                except (CeleryError, KombuError) as error:
                    logger.warning("could not close job %s: %s", job_id, error)

    def seal_abandoned(self, jobs: Sequence[JobRecord], now_ms: int) -> None:
        """End jobs whose client vanished while it was still submitting."""
        for job in jobs:
            if job.state == "open" and now_ms - job.touched_ms > ABANDONED_AFTER_MS:
                self._store.ledger.submit(job.id, job.model, (), offset=job.submitted, last=True)

    def _is_overdue(self, batch: BatchRecord, now_ms: int) -> bool:
        since_ms = max(batch.assigned_ms, self._resent_ms.get(batch.id, 0))
        return batch.state == "assigned" and now_ms - since_ms >= UNCLAIMED_AFTER_MS

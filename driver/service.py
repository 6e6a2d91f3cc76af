"""The driver process: one loop that leads, watches, recovers, schedules and dispatches, one tick at a time."""

import logging
import threading
import uuid

from celery import Celery

from broker.celery_app import create_app, send_batch
from broker.clock import Clock
from broker.errors import BrokerUnavailableError
from broker.ledger import NotLeaderError
from broker.sessions import Session
from broker.store import Store
from driver.detector import DetectorLimits
from driver.observe import observe, worker_views
from driver.recovery import Recovery
from driver.scheduler import BatchLimits, schedule
from driver.settings import DriverSettings
from driver.snapshot import Assignment

logger = logging.getLogger(__name__)

LEASE_S = 3.0
OUTAGE_PAUSE_S = 0.5
MIN_TICK_GAP_S = 0.002


class DriverService:
    """One driver. Several may run on one broker; one of them leads and acts, the others stand by."""

    def __init__(self, store: Store, settings: DriverSettings, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._app: Celery = create_app(store.settings)
        self._leadership = store.leadership(uuid.uuid4().hex, LEASE_S)
        self._limits = BatchLimits(requests=settings.batch_size, tokens=settings.batch_tokens)
        self._detector = DetectorLimits(
            heartbeat_interval=store.settings.heartbeat_interval,
            heartbeat_timeout=store.settings.heartbeat_timeout,
            failure_threshold=settings.failure_threshold,
        )
        self._recovery = Recovery(store, self._app, self._detector)
        self._reconciled_s = float("-inf")
        self._stopped = threading.Event()
        self.leads = False

    def run(self) -> None:
        """Tick until stopped; an outage of Redis is waited out."""
        while not self._stopped.is_set():
            try:
                self.tick()
                self._store.ledger.wait_for_change(self._settings.schedule_interval)
                self._stopped.wait(MIN_TICK_GAP_S)
            except BrokerUnavailableError as error:
                logger.warning("driver waits: %s", error)
                self._stopped.wait(OUTAGE_PAUSE_S)
        self._resign()

    def stop(self) -> None:
        """Make `run` return. Safe in a signal handler."""
        self._stopped.set()

    def tick(self) -> int:
        """One round of a leader's work; a standby only tries to take the lead. Returns batches dispatched."""
        try:
            leads = self._leadership.acquire_or_renew() > 0
            if leads != self.leads:
                logger.info("driver %s", "leads" if leads else "stands by")
            self.leads = leads
            return self._lead() if leads else 0
        except NotLeaderError:
            self.leads = False
            return 0

    def _lead(self) -> int:
        sessions = self._store.sessions.table()
        if self._recovery.bury_dead(sessions):
            sessions = self._store.sessions.table()
        jobs = self._store.ledger.open_jobs()
        self._reconcile(sessions)
        workers = worker_views(sessions, self._detector)
        assignments = schedule(observe(self._store.ledger, jobs, workers), self._limits) if jobs and workers else ()
        return sum(self._dispatch(assignment) for assignment in assignments)

    def _reconcile(self, sessions: list[Session]) -> None:
        now_s = self._clock.now_s()
        if now_s - self._reconciled_s < self._settings.detection_interval:
            return
        self._reconciled_s = now_s
        now_ms = self._store.ledger.server_time_ms()
        self._recovery.resend_lost(sessions, now_ms)
        self._recovery.close_complete(now_ms)
        self._recovery.seal_abandoned(self._store.ledger.open_jobs(), now_ms)

    def _dispatch(self, assignment: Assignment) -> bool:
        batch_id = str(uuid.uuid4())
        assigned = self._store.ledger.assign(
            self._leadership.token, assignment.session_id, batch_id, assignment.job_id, assignment.indices
        )
        # Dying here leaves a batch that nobody claims; the next leader sends its message again.
        if assigned:
            send_batch(self._app, assignment.worker, batch_id, assignment.job_id)
        return assigned > 0

    def _resign(self) -> None:
        try:
            self._leadership.resign()
        except BrokerUnavailableError:
            logger.info("could not resign; the lease runs out by itself")
        self._app.close()

"""The driver process: one loop that leads, watches, recovers, schedules and dispatches, one tick at a time."""

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Sequence

from celery import Celery
from kombu.exceptions import OperationalError

from broker.celery_app import create_app
from broker.clock import Clock
from broker.errors import BrokerError
from broker.ledger import NotLeaderError
from broker.outlook import Outlook
from broker.records import Session
from broker.store import Store
from driver.capacity import Capacity
from driver.detector import DetectorLimits
from driver.ending import end_pending
from driver.lease import LEASE_S
from driver.pace import Pace
from driver.planner import Planner
from driver.reconcile import PAGES_PER_PASS, Reconciler
from driver.recovery import Recovery
from driver.scalers.base import Scaler
from driver.scheduler import BatchLimits
from driver.settings import DriverSettings
from driver.silence import Silences
from driver.snapshot import Assignment, Recall

logger = logging.getLogger(__name__)

LEAD_S = 3.0  # the lease of the lead
RENEW_AFTER_S = LEAD_S / 3
OUTAGE_PAUSE_S = 0.5


class DriverService:
    """One driver. Several may run on one broker; one of them leads and acts, the others stand by."""

    def __init__(self, store: Store, settings: DriverSettings, clock: Clock, scaler: Scaler | None = None) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._app: Celery = create_app(store.settings)
        self._leadership = store.leadership(uuid.uuid4().hex, LEAD_S)
        self._waiting = store.waiting()
        self._lookout = store.lookout(self._waiting)
        self._detector = DetectorLimits(
            heartbeat_interval=store.settings.heartbeat_interval,
            heartbeat_timeout=store.settings.heartbeat_timeout,
            failure_threshold=settings.failure_threshold,
            stall_timeout=settings.stall_timeout,
        )
        limits = BatchLimits(
            requests=settings.batch_size,
            tokens=settings.batch_tokens,
            max_batch_delay=settings.max_batch_delay,
            max_attempts=store.settings.max_attempts,
        )
        self._planner = Planner(
            limits, self._detector, ageing_s=settings.ageing, user_weights=settings.weights_of_users
        )
        self._recovery = Recovery(store, self._detector, clock)
        self._reconciler = Reconciler(store, self._app)
        self._capacity = Capacity(store, settings, self._detector, clock, self._app, scaler)
        self._reconcile_at_s = float("-inf")
        self._silences = Silences(clock, of_workers_s=store.settings.heartbeat_timeout, of_clients_s=LEASE_S)
        self._pace = Pace(store.queries, store.bell(), clock, settings.schedule_interval)
        self._outage = False
        self._renewed_s = 0.0
        self._changed = True  # since the last tick, as far as is known
        self._is_idle = False  # as of the last look: nothing waits, and nothing is in hand
        self._is_full = False  # some worker takes nothing more
        self._stopped = threading.Event()
        self.leads = False

    def run(self) -> None:
        """Tick until stopped; an outage of Redis is waited out."""
        while not self._stopped.is_set():
            started_s = self._clock.now_s()
            try:
                changed, self._changed = self._changed, True  # should this fail half-way, the next must look again
                self.tick(changed=changed)
                self._outage = False
                self._wait(started_s)
            except (BrokerError, OperationalError) as error:
                if not self._outage:
                    logger.warning("driver waits: %s", error)
                self._outage = True
                self._silences.forgive()
                self._stopped.wait(OUTAGE_PAUSE_S)
            except Exception:
                # One bad record must not end the service for everybody.
                logger.exception("a tick failed; trying again")
                self._stopped.wait(OUTAGE_PAUSE_S)
        self._resign()

    def stop(self) -> None:
        """Make `run` return. Safe in a signal handler."""
        self._stopped.set()

    def tick(self, *, changed: bool = True) -> int:
        """One round of a leader's work; a standby only tries to take the lead. Returns batches dispatched.

        Where nothing has `changed` and there is no work, a leader looks at `detection_interval` only.
        """
        try:
            if not self.leads or self._is_renewal_due():
                self._keep_lead()
            return self._lead() if self.leads and self._is_look_due(changed=changed) else 0
        except NotLeaderError:
            self._note_lead(leads=False)
            return 0
        finally:
            self._silences.note_end_of_look()

    def _keep_lead(self) -> None:
        leads = self._leadership.acquire_or_renew() > 0
        self._renewed_s = self._clock.now_s()
        self._note_lead(leads=leads)

    def _note_lead(self, *, leads: bool) -> None:
        if leads != self.leads:
            logger.info("driver %s", "leads" if leads else "stands by")
        self.leads = leads

    def _is_renewal_due(self) -> bool:
        """Whether the lease could come too near to its end before the next tick."""
        before_next_s = min(self._settings.schedule_interval, RENEW_AFTER_S)
        return self._clock.now_s() - self._renewed_s > RENEW_AFTER_S - before_next_s

    def _wait(self, tick_started_s: float) -> None:
        if not self.leads:
            # A standby must not take the wake-ups from the leader, nor listen to what it does not read.
            self._pace.close()
            self._stopped.wait(self._settings.schedule_interval)
            return
        self._changed = self._pace.wait(tick_started_s, is_full=self._is_full)

    def _is_look_due(self, *, changed: bool) -> bool:
        return changed or not self._is_idle or self._clock.now_s() >= self._reconcile_at_s

    def _lead(self) -> int:
        look = self._look()
        if look.leader != self._leadership.token:
            self._keep_lead()  # the lease was lost, or taken away; where nobody else has it, it is ours again
            if not self.leads:
                return 0
        self._silences.mind_stall(look.now_ms)
        self._reconciler.end_stopped(look.stopping)
        is_reconciling = self._is_reconciling_due()
        if is_reconciling:
            self._silences.mind_restart(self._store.queries.uptime_s())
        sessions = look.sessions
        if self._recover(sessions):
            sessions = self._look().sessions
        dispatched = self._schedule(sessions, look.stopping, look.now_ms)
        if is_reconciling:  # what nobody waits for comes last
            self._store.ledger.configure(self._leadership.token, self._settings.policy())
            self._reconciler.reconcile(sessions, look.now_ms, trust_silence=self._silences.of_clients.counts)
            self._capacity.step(self._leadership.token, sessions)
        self._is_idle = not (self._waiting or dispatched or _is_any_in_hand(sessions))
        return dispatched

    def _look(self) -> Outlook:
        look = self._lookout.look()
        self._planner.learn(look.changes, look.now_ms)
        return look

    def _recover(self, sessions: Sequence[Session]) -> int:
        return self._recovery.recover(
            sessions,
            trust_silence=self._silences.of_workers.counts,
            trust_absence=self._silences.absence_of_workers.counts,
        )

    def _schedule(self, sessions: Sequence[Session], stopping: set[str], now_ms: int) -> int:
        workers = self._planner.workers(sessions)
        self._is_full = not all(worker.has_room for worker in workers)
        if not any(worker.has_room for worker in workers):
            return 0
        self._planner.forget(stopping)
        plan = self._planner.plan(self._store.queries, workers, now_ms)
        for late in plan.late:
            end_pending(self._store, late.job_id, "deadline_exceeded", late.reason, pages=PAGES_PER_PASS)
        given: Counter[str] = Counter()
        for item in plan.assignments:
            given[item.session_id] += len(item.indices)
        self._is_full |= any(given[worker.session_id] >= worker.free_slots for worker in workers)
        dispatched = sum(self._dispatch(assignment) for assignment in plan.assignments)
        for recall in self._planner.balance(sessions, workers, now_ms):
            self._recall(recall)
        return dispatched

    def _recall(self, recall: Recall) -> None:
        order_id = uuid.uuid4().hex
        token = self._leadership.token
        if self._store.ledger.recall(token, recall.session_id, order_id, recall.count, begun=recall.begun):
            logger.info("%s is asked to give back %d requests for other workers", recall.worker, recall.count)

    def _dispatch(self, assignment: Assignment) -> bool:
        if self._clock.now_s() - self._renewed_s > RENEW_AFTER_S:
            self._keep_lead()  # many dispatches in one tick must not outlast the lease
        batch_id = str(uuid.uuid4())
        assigned = self._store.ledger.assign(
            self._leadership.token,
            assignment.session_id,
            batch_id,
            assignment.job_id,
            assignment.indices,
            isolated=assignment.isolated,
            tokens=assignment.tokens,
            worker=assignment.worker,
        )
        return assigned > 0

    def _is_reconciling_due(self) -> bool:
        if self._clock.now_s() < self._reconcile_at_s:
            return False
        self._reconcile_at_s = self._clock.now_s() + self._settings.detection_interval
        return True

    def _resign(self) -> None:
        try:
            self._leadership.resign()
        except BrokerError:
            logger.info("could not resign; the lease runs out by itself")
        self._pace.close()
        self._capacity.close()
        self._app.close()


def _is_any_in_hand(sessions: Sequence[Session]) -> bool:
    return any(row.batches or row.inhand_requests for row in sessions)

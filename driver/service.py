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
from broker.records import Session
from broker.store import Store
from driver.balancing import Recall
from driver.capacity import Capacity
from driver.detector import DetectorLimits
from driver.ending import end_pending
from driver.lease import LEASE_S
from driver.planner import Planner
from driver.reconcile import PAGES_PER_PASS, Reconciler
from driver.recovery import Recovery
from driver.scalers.base import Scaler
from driver.scheduler import BatchLimits
from driver.settings import DriverSettings
from driver.silence import ServerTime, Silence
from driver.snapshot import Assignment

logger = logging.getLogger(__name__)

LEAD_S = 3.0  # the lease of the lead
RENEW_AFTER_S = LEAD_S / 3
OUTAGE_PAUSE_S = 0.5
MAX_REST_S = 0.01  # after a tick


class DriverService:
    """One driver. Several may run on one broker; one of them leads and acts, the others stand by."""

    def __init__(self, store: Store, settings: DriverSettings, clock: Clock, scaler: Scaler | None = None) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._app: Celery = create_app(store.settings)
        self._leadership = store.leadership(uuid.uuid4().hex, LEAD_S)
        self._lookout = store.lookout()
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
        self._waiting = store.waiting()
        self._recovery = Recovery(store, self._detector, clock)
        self._reconciler = Reconciler(store, self._app)
        self._capacity = Capacity(store, settings, self._detector, clock, self._app, scaler)
        self._reconcile_at_s = float("-inf")
        self._silence_of_workers = Silence(clock, store.settings.heartbeat_timeout)
        self._absence_of_workers = Silence(clock, store.settings.heartbeat_timeout)
        self._silence_of_clients = Silence(clock, LEASE_S)
        self._server_time = ServerTime(clock)
        self._outage = False
        self._renewed_s = 0.0
        self._ticked_s: float | None = None  # the end of the last tick
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
                self._forgive_silence()
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
            self.leads = False
            return 0
        finally:
            self._ticked_s = self._clock.now_s()

    def _keep_lead(self) -> None:
        leads = self._leadership.acquire_or_renew() > 0
        self._renewed_s = self._clock.now_s()
        if leads != self.leads:
            logger.info("driver %s", "leads" if leads else "stands by")
        self.leads = leads

    def _is_renewal_due(self) -> bool:
        """Whether the lease could come too near to its end before the next tick."""
        before_next_s = min(self._settings.schedule_interval, RENEW_AFTER_S)
        return self._clock.now_s() - self._renewed_s > RENEW_AFTER_S - before_next_s

    def _wait(self, tick_started_s: float) -> None:
        """Wait until something has changed.

        Where a worker is full, every output that it gives changes something: then rest for as long as the tick took,
        so that a busy driver does not do only this, and free places gather for a batch. Who comes to free workers does
        not wait.
        """
        if not self.leads:
            # A standby must not take the wake-ups from the leader.
            self._stopped.wait(self._settings.schedule_interval)
            return
        ticked_s = self._clock.now_s()
        self._changed = self._store.queries.wait_for_change(self._settings.schedule_interval)
        rest_s = min(ticked_s - tick_started_s, MAX_REST_S) if self._is_full else 0.0
        if (left_s := ticked_s + rest_s - self._clock.now_s()) > 0:
            self._stopped.wait(left_s)

    def _is_look_due(self, *, changed: bool) -> bool:
        return changed or not self._is_idle or self._clock.now_s() >= self._reconcile_at_s

    def _lead(self) -> int:
        look = self._lookout.look()
        if look.leader != self._leadership.token:
            self._keep_lead()  # the lease was lost, or taken away; where nobody else has it, it is ours again
            if not self.leads:
                return 0
        self._mind_stalls(look.now_ms)
        self._reconciler.end_stopped(look.stopping)
        is_reconciling = self._is_reconciling_due()
        if is_reconciling:
            self._mind_restarts()
        sessions = look.sessions
        if self._recover(sessions):
            sessions = self._lookout.look().sessions
        dispatched = self._schedule(sessions, look.stopping, look.now_ms)
        if is_reconciling:  # what nobody waits for comes last
            self._store.ledger.configure(self._leadership.token, self._settings.policy())
            self._reconciler.reconcile(sessions, look.now_ms, trust_silence=self._silence_of_clients.counts)
            self._capacity.step(self._leadership.token, sessions)
        self._is_idle = not (self._waiting or dispatched or _is_any_in_hand(sessions))
        return dispatched

    def _recover(self, sessions: Sequence[Session]) -> int:
        return self._recovery.recover(
            sessions,
            trust_silence=self._silence_of_workers.counts,
            trust_absence=self._absence_of_workers.counts,
        )

    def _schedule(self, sessions: Sequence[Session], stopping: set[str], now_ms: int) -> int:
        workers = self._planner.workers(sessions)
        self._is_full = not all(worker.has_room for worker in workers)
        has_room = any(worker.has_room for worker in workers)
        if has_room or not _is_any_in_hand(sessions):  # else whether anything waits is not asked yet
            self._planner.learn(self._waiting.read(), now_ms)
        if not has_room:
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
        if self._store.ledger.recall(self._leadership.token, recall.session_id, order_id, recall.count):
            logger.info("%s is asked to give back %d requests for idle workers", recall.worker, recall.count)

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

    def _mind_restarts(self) -> None:
        # Absence needs none of this: a connection's name says of which run of Redis it is.
        uptime_s = self._store.queries.uptime_s()
        self._silence_of_workers.mind_restart(uptime_s)
        self._silence_of_clients.mind_restart(uptime_s)

    def _mind_stalls(self, now_ms: int) -> None:
        """When Redis, this driver or both stood still for long and no call failed, the beats are old all the same."""
        stalled_s = 0.0 if self._ticked_s is None else self._clock.now_s() - self._ticked_s
        if max(stalled_s, self._server_time.jump_s(now_ms)) > self._store.settings.heartbeat_timeout / 2:
            self._forgive_silence()

    def _forgive_silence(self) -> None:
        self._silence_of_workers.forgive()
        self._absence_of_workers.forgive()
        self._silence_of_clients.forgive()

    def _resign(self) -> None:
        try:
            self._leadership.resign()
        except BrokerError:
            logger.info("could not resign; the lease runs out by itself")
        self._capacity.close()
        self._app.close()


def _is_any_in_hand(sessions: Sequence[Session]) -> bool:
    return any(row.batches or row.inhand_requests for row in sessions)

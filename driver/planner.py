"""One round of scheduling, from what the ledger and the heartbeats say to decisions, and all that it remembers.

The driver's loop calls it, and so does the simulation (`scripts/simulate`): there is one scheduler.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from broker.records import Session, WaitingChanges
from driver.balance_memory import BalanceMemory
from driver.balancing import left_behind, recalls
from driver.detector import DetectorLimits
from driver.estimates import Lengths, WorkerSpeeds
from driver.fairness import Fairness
from driver.lateness import Late, certainly_late
from driver.observe import Fronts, living_views, observe, worker_views
from driver.placement import Memory
from driver.scheduler import BatchLimits, schedule
from driver.snapshot import Assignment, Recall, WorkerView


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now: batches to assign, and jobs whose deadline cannot be met."""

    assignments: tuple[Assignment, ...] = ()
    late: tuple[Late, ...] = ()


class Planner:
    """Decides what goes where. What it remembers it learns anew when it is lost with its driver."""

    def __init__(
        self,
        limits: BatchLimits,
        detector: DetectorLimits,
        *,
        ageing_s: float,
        user_weights: Mapping[str, float] | None = None,
    ) -> None:
        self._limits = limits
        self._detector = detector
        self._fairness = Fairness(ageing_s, user_weights)
        self._memory = Memory()
        self._lengths = Lengths()
        self._speeds = WorkerSpeeds()
        self._balance = BalanceMemory(detector.heartbeat_interval)

    def workers(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]:
        """The workers that may get work now; learns from their beats."""
        self._speeds.note(sessions)
        self._balance.note(sessions)
        giving = self._balance.asked_sessions
        able = [session for session in sessions if session.id not in giving] if giving else sessions
        return worker_views(able, self._detector, self._speeds)

    def learn(self, changes: WaitingChanges, now_ms: int) -> None:
        """Jobs have begun to wait, or do not wait any more; `now_ms` is the server's time."""
        self.forget(changes.left)
        for job in changes.joined:
            self._fairness.enter(job, now_ms / 1000)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Jobs do not wait any more, or must not run."""
        for job_id in job_ids:
            self._fairness.leave(job_id)
            self._lengths.forget(job_id)

    def plan(self, ledger: Fronts, workers: tuple[WorkerView, ...], now_ms: int) -> Plan:
        """The decisions of one round; `now_ms` is the server's time."""
        now_s = now_ms / 1000
        models = {"", *(worker.model for worker in workers)} if workers else set[str]()
        ranked, waiting = self._fairness.in_order(models, now_s), self._fairness.count(models)
        snapshot = observe(ledger, ranked, waiting, workers, self._lengths)
        late = certainly_late(
            self._fairness.by_deadline(now_s),
            snapshot.jobs,
            self._lengths,
            tokens_per_s=sum(worker.speed for worker in workers),
            request_tokens_per_s=self._speeds.fastest_request(),
            now_ms=now_ms,
        )
        gone = {item.job_id for item in late}
        jobs = tuple(job for job in snapshot.jobs if job.id not in gone)
        snapshot = msgspec.structs.replace(snapshot, jobs=jobs)
        assignments = schedule(snapshot, self._fairness, self._memory, self._limits, now_s)
        return Plan(assignments=assignments, late=tuple(late))

    def balance(self, sessions: Sequence[Session], workers: Sequence[WorkerView], now_ms: int) -> tuple[Recall, ...]:
        """Who should give back what it holds, as `workers` with nothing to do would end it sooner.

        A model for which anything is pending is left alone, as that comes first; but who leaves should not begin more.
        """
        decided = left_behind(self._views(self._balance.leaving(sessions)), workers)
        for recall in decided:
            self._balance.note_order(recall, now_ms)
        idle = [worker for worker in workers if worker.idle_slots]
        for model in sorted({worker.model for worker in idle} - self._balance.asked_models):
            if not self._fairness.count(("", model)):
                held = self._views(self._balance.lasting(row for row in sessions if row.model == model))
                moved = recalls(held, [worker for worker in idle if worker.model == model])
                for recall in moved:
                    self._balance.note_order(recall, now_ms)
                decided += moved
        return decided

    def _views(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]:
        return living_views(sessions, self._detector, self._speeds)

"""One round of scheduling, from what the ledger and the heartbeats say to decisions, and all that it remembers.

The driver's loop calls it, and so does the simulation (`scripts/simulate`): there is one scheduler.
"""

from collections.abc import Mapping, Sequence

import msgspec

from broker.records import Session, WaitingJob
from driver.detector import DetectorLimits
from driver.estimates import Lengths, WorkerSpeeds
from driver.fairness import Fairness
from driver.lateness import Late, certainly_late
from driver.observe import Fronts, observe, worker_views
from driver.placement import Memory
from driver.scheduler import BatchLimits, schedule
from driver.snapshot import Assignment, WorkerView


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

    def workers(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]:
        """The workers that may get work now; learns from their beats."""
        self._speeds.note(sessions)
        return worker_views(sessions, self._detector, self._speeds)

    def plan(self, ledger: Fronts, workers: tuple[WorkerView, ...], waiting: Sequence[WaitingJob], now_ms: int) -> Plan:
        """The decisions of one round; `now_ms` is the server's time."""
        ranked = self._fairness.rank(waiting, now_ms / 1000)
        self._lengths.forget_all_but({job.id for job in waiting})
        snapshot = observe(ledger, ranked, workers, self._lengths)
        late = certainly_late(
            ranked,
            snapshot.jobs,
            self._lengths,
            tokens_per_s=sum(worker.speed for worker in workers),
            request_tokens_per_s=self._speeds.fastest_request(),
            now_ms=now_ms,
        )
        gone = {item.job_id for item in late}
        jobs = tuple(job for job in snapshot.jobs if job.id not in gone)
        snapshot = msgspec.structs.replace(snapshot, jobs=jobs)
        assignments = schedule(snapshot, self._fairness, self._memory, self._limits, now_ms / 1000)
        return Plan(assignments=assignments, late=tuple(late))

"""Planners to compare with: the first job first, and the worker with most room, or any."""

import random
from collections.abc import Sequence

from broker.records import PendingRequest, Session, WaitingChanges, WaitingJob
from driver.detector import DetectorLimits
from driver.estimates import WorkerSpeeds
from driver.observe import Fronts, worker_views
from driver.planner import Plan
from driver.snapshot import Assignment, Recall, WorkerView

BATCH = 32


class FirstComeFirstServed:
    """Jobs in the order of their arrival; requests in order; every worker's window is filled to the end."""

    def __init__(self, *, random_workers: bool = False) -> None:
        self._waiting: dict[str, WaitingJob] = {}
        self._random = random.Random(1) if random_workers else None

    def workers(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]:
        return worker_views(sessions, DetectorLimits(), WorkerSpeeds())

    def learn(self, changes: WaitingChanges, now_ms: int) -> None:
        self._waiting.update({job.id: job for job in changes.joined})
        for job_id in changes.left:
            del self._waiting[job_id]

    def plan(self, ledger: Fronts, workers: tuple[WorkerView, ...], now_ms: int) -> Plan:
        order = [worker for worker in workers if worker.has_room]
        if self._random is None:
            order.sort(key=lambda worker: (-worker.free_slots, worker.worker))
        else:
            self._random.shuffle(order)
        decided: list[Assignment] = []
        for job in sorted(self._waiting.values(), key=lambda job: job.created_ms):
            if not order:
                break
            room = sum(worker.free_slots for worker in order)
            pending = ledger.fronts([job.id], room)[0].pending
            while pending and order:
                worker = order[0]
                batch, pending = pending[: min(BATCH, worker.free_slots)], pending[min(BATCH, worker.free_slots) :]
                decided.append(_assignment(worker, job, batch))
                order.pop(0)
        return Plan(assignments=tuple(decided))

    def balance(self, sessions: Sequence[Session], workers: Sequence[WorkerView], now_ms: int) -> tuple[Recall, ...]:
        return ()


def _assignment(worker: WorkerView, job: WaitingJob, batch: tuple[PendingRequest, ...]) -> Assignment:
    return Assignment(
        session_id=worker.session_id,
        worker=worker.worker,
        job_id=job.id,
        indices=tuple(request.index for request in batch),
        tokens=tuple(request.cost for request in batch),
    )

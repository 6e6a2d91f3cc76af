"""Finds the request that kills its worker without sacrificing its neighbours. Pure.

Requests that were in hand when a worker died are suspects. They run again in small batches, each alone on its worker:
a batch that survives is cleared, one that dies makes smaller ones, and before its last attempt a suspect runs all
alone, so that nobody is given up for a neighbour's fault.
"""

from collections.abc import Sequence
from math import ceil, isqrt

import msgspec

from broker.records import PendingRequest
from driver.snapshot import Assignment, JobView, WorkerView


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of suspects to start now, and the workers that take nothing else meanwhile."""

    assignments: tuple[Assignment, ...]
    reserved: frozenset[str]  # session ids


def suspects_of(job: JobView) -> tuple[PendingRequest, ...]:
    """The job's pending requests that were part of a death."""
    return tuple(request for request in job.pending if request.attempts > 0)


def isolate(jobs: Sequence[JobView], workers: Sequence[WorkerView], max_attempts: int) -> Isolation:
    """Put suspects onto idle workers; where none is idle, keep new work from the one that soonest will be.

    While other work waits, at most half of a model's workers are used so, and at least one.
    """
    assignments: list[Assignment] = []
    reserved: set[str] = set()
    others_wait = any(request.attempts == 0 for job in jobs for request in job.pending)
    for job in jobs:
        suspects = suspects_of(job)
        if not suspects:
            continue
        able = sorted((w for w in workers if w.serves(job.model)), key=lambda w: (w.in_hand, w.worker))
        free = [worker for worker in able if not worker.isolated and worker.session_id not in reserved]
        limit = max(1, len(able) // 2) if others_wait else len(able)
        room = max(0, limit - (len(able) - len(free)))
        batches = suspect_batches(suspects, max_attempts)
        for worker, batch in zip(free[:room], batches, strict=False):
            reserved.add(worker.session_id)
            if worker.in_hand == 0:
                assignments.append(_alone(worker, job.id, batch))
    return Isolation(assignments=tuple(assignments), reserved=frozenset(reserved))


def suspect_batches(suspects: Sequence[PendingRequest], max_attempts: int) -> list[tuple[PendingRequest, ...]]:
    """Suspects in batches of about the square root of their number; those on their last attempt one by one."""
    last = [request for request in suspects if request.attempts + 1 >= max_attempts]
    others = [request for request in suspects if request.attempts + 1 < max_attempts]
    size = max(1, isqrt(len(others)))
    count = ceil(len(others) / size)
    return [(request,) for request in last] + [tuple(others[i * size : (i + 1) * size]) for i in range(count)]


def _alone(worker: WorkerView, job_id: str, batch: tuple[PendingRequest, ...]) -> Assignment:
    return Assignment(
        session_id=worker.session_id,
        worker=worker.worker,
        job_id=job_id,
        indices=tuple(request.index for request in batch),
        tokens=tuple(request.cost for request in batch),
        isolated=True,
    )

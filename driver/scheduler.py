"""The driver's level of scheduling: which requests form the next batch, and which worker gets it. Pure.

Jobs are served first come, first served. Each batch goes to the worker with the most room, and none is larger than an
even share of its job, so that every worker has work and all finish together. Work is assigned only while a worker has
room: what waits, waits in the ledger, where cancellations and deaths still act on it. Requests that were part of a
worker's death run apart from the others (`isolation`).
"""

from collections.abc import Iterator
from math import ceil

import msgspec

from driver.batching import take_batch
from driver.isolation import isolate
from driver.placement import choose_worker
from driver.snapshot import Assignment, JobView, Snapshot, WorkerView, assignment


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch, in requests and in estimated tokens, and how often a request may be tried."""

    requests: int
    tokens: int
    max_attempts: int = 3


def schedule(snapshot: Snapshot, limits: BatchLimits) -> tuple[Assignment, ...]:
    """Assign pending requests to workers until either runs out."""
    apart = isolate(snapshot.jobs, snapshot.workers, limits.max_attempts)
    workers = {w.session_id: w for w in snapshot.workers if w.session_id not in apart.reserved}
    served = (decision for job in snapshot.jobs for decision in _serve(job, workers, limits))
    return (*apart.assignments, *served)


def _serve(job: JobView, workers: dict[str, WorkerView], limits: BatchLimits) -> Iterator[Assignment]:
    """Assignments of one job's unsuspected requests; `workers` lose the room that they fill."""
    pending = tuple(request for request in job.pending if request.attempts == 0)
    able = sum(worker.serves(job.model) for worker in workers.values())
    share = ceil(len(pending) / max(able, 1))
    while pending and (worker := choose_worker(workers.values(), job.model)):
        size = min(limits.requests, share, worker.free_slots)
        batch = take_batch(pending, size, min(limits.tokens, worker.free_tokens))
        pending = pending[len(batch) :]
        tokens = sum(request.cost for request in batch)
        workers[worker.session_id] = worker.with_batch(len(batch), tokens)
        yield assignment(worker, job.id, batch, isolated=False)

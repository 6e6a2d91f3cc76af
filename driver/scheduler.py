"""The driver's level of scheduling: which requests form the next batch, and which worker gets it. Pure.

Jobs are served first come, first served. Each batch goes to the worker with the most room, and none is larger than an
even share of its job, so that every worker has work and all finish together. Work is assigned only while a worker has
room: what waits, waits in the ledger, where priorities, cancellations and deaths still act on it.
"""

from collections.abc import Iterator
from math import ceil

import msgspec

from driver.batching import take_batch
from driver.placement import choose_worker, occupy, serves
from driver.snapshot import Assignment, JobView, Snapshot, WorkerView


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch, in requests and in estimated tokens."""

    requests: int
    tokens: int


def schedule(snapshot: Snapshot, limits: BatchLimits) -> tuple[Assignment, ...]:
    """Assign pending requests to workers until either runs out."""
    workers = {worker.session_id: worker for worker in snapshot.workers}
    return tuple(assignment for job in snapshot.jobs for assignment in _serve(job, workers, limits))


def _serve(job: JobView, workers: dict[str, WorkerView], limits: BatchLimits) -> Iterator[Assignment]:
    """Assignments of one job; `workers` lose the room that they fill."""
    able = sum(serves(worker, job.model) for worker in workers.values())
    share = ceil(len(job.pending) / max(able, 1))
    pending = job.pending
    while pending and (worker := choose_worker(workers.values(), job.model)):
        size = min(limits.requests, share, worker.free_slots)
        batch = take_batch(pending, size, min(limits.tokens, worker.free_tokens))
        pending = pending[len(batch) :]
        tokens = sum(request.cost for request in batch)
        workers[worker.session_id] = occupy(worker, len(batch), tokens)
        yield Assignment(
            session_id=worker.session_id,
            worker=worker.worker,
            job_id=job.id,
            indices=tuple(request.index for request in batch),
            tokens=tokens,
        )

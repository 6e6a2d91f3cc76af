"""The driver's level of scheduling: which requests form the next batch, and which worker gets it. Pure.

One round is a short loop: whose turn is it (`fairness`), which worker is best for its next request (`placement`), which
requests go there together (`batching`). It ends when no worker has room for anybody. Work is assigned only while a
worker has room: what waits, waits in the ledger, where priorities, shares, cancellations and deaths still act on it.
Requests that were part of a worker's death run apart from the others (`isolation`).
"""

from collections.abc import Iterable

import msgspec

from driver.batching import Batch, Front
from driver.estimates import long_tokens, probable_tokens
from driver.fairness import Fairness
from driver.isolation import isolate
from driver.placement import Demand, Memory, Place, Room
from driver.snapshot import Assignment, JobView, Snapshot, WorkerView
from driver.turns import Turns

SLOTS_OF_LIMITS = 128  # a batch costs some milliseconds, which a worker that runs many requests at once feels


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch, in requests and in expected tokens; the longest wait for one to fill, in seconds.

    And how often a request may be tried. A worker with more than `SLOTS_OF_LIMITS` slots gets larger batches.
    """

    requests: int
    tokens: int
    max_batch_delay: float = 0.0
    max_attempts: int = 3

    def largest(self, slots: int) -> tuple[int, int]:
        """Requests and expected tokens of the largest batch for a worker with so many slots."""
        times = max(1, slots // SLOTS_OF_LIMITS)
        return times * self.requests, times * self.tokens


def schedule(
    snapshot: Snapshot, fairness: Fairness, memory: Memory, limits: BatchLimits, now_s: float
) -> tuple[Assignment, ...]:
    """Assign pending requests to workers until either runs out. `fairness` and `memory` learn what was decided."""
    apart = isolate(snapshot.jobs, snapshot.workers, limits.max_attempts)
    workers = [worker for worker in snapshot.workers if worker.session_id not in apart.reserved]
    room = Room(workers, _demand(snapshot), memory, now_s=now_s, max_batch_delay_s=limits.max_batch_delay)
    served = {"", *_models(workers)}
    turns = Turns(fairness, [(job.job, job.level) for job in snapshot.jobs], served, now_s)
    fronts = {job.id: Front(job) for job in snapshot.jobs}
    decided = list(apart.assignments)
    while (job := turns.next()) is not None:
        front = fronts[job.id]
        place = None if front.is_empty else room.choose(job.model, front.prefix)
        if place is None:
            turns.leave()
            continue
        requests, tokens = limits.largest(place.view.slots)
        batch = front.take(min(requests, place.free), min(tokens, place.free_tokens))
        room.fill(place, batch)
        turns.give(batch.tokens)
        decided.append(_assignment(place, job.id, batch))
    return tuple(decided)


def _demand(snapshot: Snapshot) -> dict[str, Demand]:
    """What waits for each model that workers serve; without bound if there are jobs that the snapshot does not show."""
    more = float("inf") if snapshot.more_jobs else 0.0
    return {model: _demand_for(model, snapshot.jobs, more) for model in _models(snapshot.workers)}


def _demand_for(model: str, jobs: Iterable[JobView], more: float) -> Demand:
    wanting = [(max(job.backlog, len(job.pending)), job) for job in jobs if job.model in ("", model)]
    return Demand(
        requests=more + sum(count for count, _ in wanting),
        tokens=more + sum(count * probable_tokens(job) for count, job in wanting),
        longest=max((long_tokens(job) for _, job in wanting), default=1.0),
    )


def _models(workers: Iterable[WorkerView]) -> set[str]:
    return {worker.model for worker in workers}


def _assignment(place: Place, job_id: str, batch: Batch) -> Assignment:
    return Assignment(
        session_id=place.view.session_id,
        worker=place.view.worker,
        job_id=job_id,
        indices=tuple(request.index for request in batch.requests),
        tokens=batch.expected,
    )

"""Reads the ledger and the heartbeat table into the snapshot that the policies decide by."""

from collections.abc import Sequence

from broker.messages import WorkerState
from broker.queries import Queries
from broker.records import JobRecord, Session
from driver.detector import DetectorLimits, Verdict, judge
from driver.snapshot import JobView, Snapshot, WorkerView

# Beyond what it runs, a worker holds this share of its slots, so that a free slot is refilled without a round trip.
WINDOW = 0.25
SUSPECT_WINDOW = 256  # suspects stand at the front of the queue; look past them
MAX_PENDING_READ = 4096  # of one job in one tick


def worker_views(sessions: Sequence[Session], limits: DetectorLimits) -> tuple[WorkerView, ...]:
    """The workers that may get work now."""
    return tuple(
        _worker_view(session)
        for session in sessions
        if session.state == WorkerState.READY and not session.drain and judge(session, limits) is Verdict.ALIVE
    )


def observe(queries: Queries, jobs: Sequence[JobRecord], workers: tuple[WorkerView, ...], now_ms: int) -> Snapshot:
    """Jobs that have pending requests to run, as far as the workers' room goes; oldest first."""
    room = sum(max(worker.free_slots, 0) for worker in workers)
    views: list[JobView] = []
    for job in jobs:
        if room <= 0:
            break
        if job.done >= job.submitted or is_over(job, now_ms):
            continue
        pending = queries.pending(job.id, min(room + SUSPECT_WINDOW, MAX_PENDING_READ))
        if pending:
            views.append(JobView(id=job.id, model=job.model, pending=pending))
            if any(worker.serves(job.model) for worker in workers):
                room -= sum(request.attempts == 0 for request in pending)
    return Snapshot(jobs=tuple(views), workers=workers)


def is_over(job: JobRecord, now_ms: int) -> bool:
    """Whether a job's pending requests must not run any more."""
    return job.cancelled or 0 < job.deadline_ms <= now_ms


def _worker_view(session: Session) -> WorkerView:
    slots = session.slots + max(1, int(session.slots * WINDOW))
    return WorkerView(
        session_id=session.id,
        worker=session.worker,
        model=session.model,
        free_slots=slots - session.inhand_requests,
        free_tokens=int(session.kv_tokens * (1 + WINDOW)) - session.inhand_tokens,
        free_batches=session.max_batches - session.batches,
        in_hand=session.inhand_requests,
        isolated=session.isolated > 0,
    )

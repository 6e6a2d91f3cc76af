"""Reads the ledger and the heartbeat table into the snapshot that the policies decide by."""

from collections.abc import Sequence

from broker.messages import WorkerState
from broker.queries import Queries
from broker.records import Session, WaitingJob
from driver.detector import DetectorLimits, Verdict, judge
from driver.snapshot import JobView, Snapshot, WorkerView

# Beyond what it runs, a worker holds this share of its slots, so that a free slot is refilled without a round trip.
WINDOW = 0.25
SUSPECT_WINDOW = 256  # suspects stand at the front of the queue; look past them
MAX_PENDING_READ = 4096  # of one job in one tick
MAX_PAGE = 64  # jobs read together; the first pages are smaller, as one large job often fills all room


def worker_views(sessions: Sequence[Session], limits: DetectorLimits) -> tuple[WorkerView, ...]:
    """The workers that may get work now."""
    return tuple(
        _worker_view(session)
        for session in sessions
        if session.state == WorkerState.READY and not session.drain and judge(session, limits) is Verdict.ALIVE
    )


def observe(queries: Queries, waiting: Sequence[WaitingJob], workers: tuple[WorkerView, ...]) -> Snapshot:
    """The first of the waiting jobs that these workers serve, as far as the workers' room goes."""
    models = {worker.model for worker in workers}
    served = [job for job in waiting if job.model in models or (workers and not job.model)]
    room = sum(max(worker.free_slots, 0) for worker in workers)
    views: list[JobView] = []
    start, size = 0, 1
    while room > 0 and start < len(served):
        page = served[start : start + size]
        start, size = start + size, min(2 * size, MAX_PAGE)
        limit = min(room + SUSPECT_WINDOW, MAX_PENDING_READ)
        for job, pending in zip(page, queries.pending_of([job.id for job in page], limit), strict=True):
            if pending:
                views.append(JobView(id=job.id, model=job.model, pending=pending))
                room -= sum(request.attempts == 0 for request in pending)
    return Snapshot(jobs=tuple(views), workers=workers)


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

"""Reads the ledger and the heartbeat table into the snapshot that the policies decide by."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from broker.records import JobFront, Session, WaitingJob
from broker.states import WorkerState
from driver.batching import LOOKAHEAD
from driver.detector import DetectorLimits, Verdict, judge
from driver.estimates import Lengths, WorkerSpeeds
from driver.snapshot import JobView, Snapshot, WorkerView

# Beyond what it runs, a worker holds this share of its slots, so that a free slot is refilled without a round trip.
WINDOW = 0.25
SUSPECT_WINDOW = 256  # suspects stand at the front of the queue; look past them
MAX_PENDING_READ = 4096  # of one job in one round
MAX_PAGE = 64  # jobs read together


class Fronts(Protocol):
    """Where the fronts of jobs are read: the ledger, or a simulation of it."""

    def fronts(self, job_ids: Sequence[str], limit: int) -> list[JobFront]:
        """Each job's first pending requests, at most `limit`, and its counters."""
        ...


def worker_views(sessions: Sequence[Session], limits: DetectorLimits, speeds: WorkerSpeeds) -> tuple[WorkerView, ...]:
    """The workers that may get work now."""
    return tuple(
        _worker_view(session, speeds)
        for session in sessions
        if session.state == WorkerState.READY and not session.drain and judge(session, limits) is Verdict.ALIVE
    )


def living_views(sessions: Sequence[Session], limits: DetectorLimits, speeds: WorkerSpeeds) -> tuple[WorkerView, ...]:
    """The workers that can be asked for something; those too that get no work any more."""
    return tuple(_worker_view(session, speeds) for session in sessions if judge(session, limits) is Verdict.ALIVE)


def observe(
    ledger: Fronts,
    ranked: Iterable[tuple[WaitingJob, int]],
    waiting: int,
    workers: tuple[WorkerView, ...],
    lengths: Lengths,
) -> Snapshot:
    """The first of so many waiting jobs that these workers serve, in their order, as far as the workers' room goes.

    Of each job twice its even share of the room is read, and enough to find requests that are alike. No more jobs are
    read than there is room for batches, as each needs one, unless all are few.
    """
    open_workers = [worker for worker in workers if worker.has_room]
    slots = sum(worker.free_slots for worker in open_workers)
    batches = max(sum(worker.free_batches for worker in open_workers), min(waiting, MAX_PAGE))
    views: list[JobView] = []
    line, read = iter(ranked), 0
    while slots > 0 and batches > 0:
        page = list(islice(line, min(MAX_PAGE, batches)))
        if not page:
            break
        read += len(page)
        limit = min(max(2 * slots // len(page), LOOKAHEAD), MAX_PENDING_READ)
        for job_view in _read(ledger, page, limit, lengths):
            views.append(job_view)
            fresh = sum(request.attempts == 0 for request in job_view.pending)
            slots -= fresh
            batches -= fresh > 0
    return Snapshot(jobs=tuple(views), workers=workers, more_jobs=read < waiting)


def _read(ledger: Fronts, page: Sequence[tuple[WaitingJob, int]], limit: int, lengths: Lengths) -> list[JobView]:
    fronts = ledger.fronts([job.id for job, _ in page], limit)
    # A front of nothing but suspects hides what else there is.
    hidden = [place for place, front in enumerate(fronts) if front.pending and front.pending[-1].attempts]
    if hidden:
        for place, front in zip(hidden, _deeper(ledger, page, hidden, limit), strict=True):
            fronts[place] = front
    return [
        JobView(
            job=job,
            level=level,
            pending=front.pending,
            backlog=front.backlog,
            mean_output=lengths.note(job.id, job.model, front),
        )
        for (job, level), front in zip(page, fronts, strict=True)
        if front.pending
    ]


def _deeper(
    ledger: Fronts, page: Sequence[tuple[WaitingJob, int]], places: Sequence[int], limit: int
) -> list[JobFront]:
    return ledger.fronts([page[place][0].id for place in places], limit + SUSPECT_WINDOW)


def _worker_view(session: Session, speeds: WorkerSpeeds) -> WorkerView:
    window = max(1, int(session.slots * WINDOW))
    idle = session.slots - session.inhand_requests if session.inhand_tokens < session.kv_tokens else 0
    return WorkerView(
        session_id=session.id,
        worker=session.worker,
        model=session.model,
        free_slots=session.slots + window - session.inhand_requests,
        free_tokens=int(session.kv_tokens * (1 + WINDOW)) - session.inhand_tokens,
        free_batches=session.max_batches - session.batches,
        idle_slots=max(idle, 0),
        slots=max(session.slots, 1),
        in_hand=session.inhand_requests,
        tokens_in_hand=session.inhand_tokens,
        speed=speeds.speed(session),
        is_proven=speeds.is_proven(session),
        pace=speeds.pace(session),
        isolated=session.isolated > 0,
        running=session.running,
        waiting=session.waiting,
        leaving=session.state != WorkerState.READY or session.drain > 0,
    )

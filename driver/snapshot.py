"""What the policies decide by: the state of workers and jobs at one moment."""

import msgspec

from broker.ledger import PendingRequest


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A ready worker and the room it has left, in requests, tokens and batches."""

    session_id: str
    worker: str
    model: str
    free_slots: int
    free_tokens: int
    free_batches: int


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job with work to do; `pending` is the front of its queue. An empty model means any."""

    id: str
    model: str
    pending: tuple[PendingRequest, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order in which they are served, and the workers that may serve them."""

    jobs: tuple[JobView, ...]
    workers: tuple[WorkerView, ...]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: these requests of a job go to this session as one batch."""

    session_id: str
    worker: str
    job_id: str
    indices: tuple[int, ...]
    tokens: int

"""What the policies decide by: the state of workers and jobs at one moment."""

import msgspec

from broker.records import PendingRequest


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A ready worker and the room it has left, in requests, tokens and batches."""

    session_id: str
    worker: str
    model: str
    free_slots: int
    free_tokens: int
    free_batches: int
    in_hand: int = 0  # requests
    isolated: bool = False  # runs suspects, and nothing else

    @property
    def has_room(self) -> bool:
        """Whether the worker can take one more batch."""
        return not self.isolated and self.free_slots > 0 and self.free_batches > 0 and self.free_tokens > 0

    def serves(self, model: str) -> bool:
        """Whether the worker serves this model ("" for any)."""
        return model in ("", self.model)

    def with_batch(self, requests: int, tokens: int, *, isolated: bool = False) -> "WorkerView":
        """The worker with one more batch of this size in hand."""
        return msgspec.structs.replace(
            self,
            free_slots=self.free_slots - requests,
            free_tokens=self.free_tokens - tokens,
            free_batches=self.free_batches - 1,
            in_hand=self.in_hand + requests,
            isolated=isolated,
        )


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
    isolated: bool = False


def assignment(worker: WorkerView, job_id: str, batch: tuple[PendingRequest, ...], *, isolated: bool) -> Assignment:
    """The decision to give a batch of a job's requests to a worker."""
    return Assignment(
        session_id=worker.session_id,
        worker=worker.worker,
        job_id=job_id,
        indices=tuple(request.index for request in batch),
        isolated=isolated,
    )

"""What the policies decide by: the state of workers and jobs at one moment."""

import msgspec

from broker.records import PendingRequest, WaitingJob


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A ready worker and the room it has left, in requests, tokens and batches.

    `free_slots` and `free_tokens` count a small window beyond what the worker can run at once; what is in the window
    waits there. `idle_slots` are those of them that would run at once.
    """

    session_id: str
    worker: str
    model: str
    free_slots: int
    free_tokens: int
    free_batches: int
    idle_slots: int = 0
    slots: int = 1  # requests that it runs at once
    in_hand: int = 0  # requests
    tokens_in_hand: int = 0
    speed: float = 1.0  # tokens per second with all slots in use
    is_proven: bool = False  # the speed was seen at work, with at least half of the slots in use
    pace: float = 0.0  # tokens per second of one of its requests, as it was lately; 0 while unknown
    isolated: bool = False  # runs suspects, and nothing else
    running: int = 0  # of those in hand, as of the last beat
    waiting: int = 0  # of those in hand, as of the last beat: it has not begun them
    leaving: bool = False  # gets nothing any more: it drains, or is about to serve something else

    @property
    def has_room(self) -> bool:
        """Whether the worker can take one more batch."""
        return not self.isolated and self.free_slots > 0 and self.free_batches > 0 and self.free_tokens > 0

    @property
    def window(self) -> int:
        """Requests that may wait at the worker beyond what it runs at once."""
        return self.in_hand + self.free_slots - self.slots

    def serves(self, model: str) -> bool:
        """Whether the worker serves this model ("" for any)."""
        return model in ("", self.model)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job with work to do; `pending` is the front of its queue, `level` its priority class, raised by ageing."""

    job: WaitingJob
    pending: tuple[PendingRequest, ...]
    level: int = 0
    backlog: int = 0  # pending requests, the front's among them
    mean_output: float | None = None  # tokens of a request's texts; None while nothing is known

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def model(self) -> str:
        """The model that it asks for; "" for any."""
        return self.job.model


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that may be served now, and the workers that may serve them."""

    jobs: tuple[JobView, ...]
    workers: tuple[WorkerView, ...]
    more_jobs: bool = False  # that wait and are not among `jobs`


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: these requests of a job go to this session as one batch."""

    session_id: str
    worker: str
    job_id: str
    indices: tuple[int, ...]
    tokens: tuple[int, ...]  # that each is expected to occupy
    isolated: bool = False


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: this worker gives back so many requests."""

    session_id: str
    worker: str
    model: str
    count: int
    begun: bool = False  # those too that have begun, after those that have not

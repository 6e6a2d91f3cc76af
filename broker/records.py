"""What the ledger and the heartbeat table say, as typed records. No I/O: the policies decide by these."""

from enum import StrEnum

import msgspec

from broker.errors import IncompleteJobError
from broker.messages import Request
from broker.states import JobState


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of a job; counts are requests, times are server milliseconds."""

    id: str
    model: str
    priority: int
    state: JobState
    submitted: int
    done: int
    failed: int
    dropped: int  # late second outputs that were refused
    prompt_tokens: int
    completion_tokens: int
    created_ms: int
    touched_ms: int
    finished_ms: int
    deadline_ms: int = 0  # 0 for none
    cancelled: bool = False
    user: str = ""  # whose limits count, and whose share of the workers it uses
    shared: int = 0  # requests that got the output of an identical one of the job
    cached: int = 0  # requests that got the output of an identical one of another job
    saved_prompt_tokens: int = 0  # of these outputs; the tokens above were read and generated for this job
    saved_completion_tokens: int = 0
    weight: float = 1.0  # of the user's share, beside the user's other jobs
    reserved_requests: int = 0  # announced, and not yet submitted
    client_lost: bool = False  # its client was gone before it had sealed the job: requests may be missing

    def incomplete(self) -> IncompleteJobError:
        """What to say of a job whose client was lost to those who want all of its outputs."""
        return IncompleteJobError(
            f"job {self.id} is incomplete: its client was lost before it had said that no more requests follow, after "
            f"{self.submitted}; what these have as outputs can be read: Client().job({self.id!r}).as_completed()"
        )


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the leading driver has set for all; 0 is no limit. Pending is what was submitted and has no output yet."""

    max_pending_requests: int = 0
    max_pending_tokens: int = 0  # estimated: prompt and max_tokens
    max_user_pending_requests: int = 0  # of one user
    max_user_pending_tokens: int = 0
    share_identical: bool = True
    result_cache_ttl: int = 0  # s; 0: no cache
    result_cache_mib: int = 64


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered without being generated, since Redis knows this namespace; and the result cache now."""

    shared: int = 0  # requests, by an identical one of their job
    cached: int = 0  # requests, by one of another job
    saved_prompt_tokens: int = 0
    saved_completion_tokens: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was submitted and has no output yet: requests, and their estimated tokens (prompt and `max_tokens`)."""

    requests: int = 0
    tokens: int = 0


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of a batch."""

    id: str
    job: str
    session: str
    state: str  # assigned, claimed
    assigned_ms: int
    size: int
    tokens: int
    isolated: bool = False


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits: its index, what it may occupy in tokens, and the deaths that it was part of."""

    index: int
    cost: int
    attempts: int = 0
    prompt_tokens: int = 0  # of the cost
    prefix: int = 0  # a number for how a long prompt begins; 0 for a short one


class WaitingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has pending requests, and what never changes of it. An empty model means any."""

    id: str
    model: str
    priority: int = 0
    user: str = ""
    weight: float = 1.0
    created_ms: int = 0
    deadline_ms: int = 0  # 0 for none


class WaitingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that began to wait since the last reading, and the ids of those that do not wait any more."""

    joined: tuple[WaitingJob, ...] = ()
    left: frozenset[str] = frozenset()


class JobFront(msgspec.Struct, frozen=True, kw_only=True):
    """The first pending requests of a job, and where the job stands."""

    pending: tuple[PendingRequest, ...] = ()
    backlog: int = 0  # all that are pending
    answered: int = 0  # requests that have a text
    output_tokens: int = 0  # of all their texts


class JobBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits of a job, and what is known of its answers; costs are estimated prompt tokens plus `max_tokens`."""

    model: str
    requests: int
    mean_cost: float
    answered: int = 0  # requests for which a text was generated
    completion_tokens: int = 0  # of those

    @property
    def tokens_each(self) -> float:
        """Tokens to generate for a request: as many as for those that are answered, else as many as may be."""
        return self.completion_tokens / self.answered if self.answered else self.mean_cost


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in all: the first jobs, and how many jobs there are."""

    jobs: tuple[JobBacklog, ...] = ()
    waiting: int = 0

    @property
    def share(self) -> float:
        """By how much the jobs that were looked at must be multiplied to stand for all."""
        return self.waiting / len(self.jobs) if self.jobs else 0.0


class ClaimedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run, with the tokens that an interrupted run of it has saved."""

    index: int
    request: Request
    attempts: int = 0
    generated: tuple[int, ...] = ()


class ClaimedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a batch that still need an output; `deadline_s` is seconds from now, None for none."""

    requests: tuple[ClaimedRequest, ...]
    unreadable: tuple[tuple[int, str], ...] = ()  # index and why, of what does not decode
    cancelled: bool = False
    deadline_s: float | None = None
    priority: int = 0  # the job's


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a commit."""

    accepted: int
    dropped: int
    job_done: bool
    shared: int = 0  # outputs given to others that waited for the same


class QuarantinedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was given up after it had cost its worker's life too often."""

    job_id: str
    index: int
    model: str
    request: Request
    reason: str
    at_ms: int


class Cause(StrEnum):
    """Why a session is dead. The first two can be a request's fault, and the third where it comes again and again."""

    CRASHED = "crashed"  # its process ended by itself or by a signal
    HUNG = "hung"  # it had work and made no step
    LOST = "lost"  # its heartbeat stopped: the host or the network is gone
    STOPPED = "stopped"  # it was asked to end


class ScaleMode(StrEnum):
    """Who has set the bounds on the number of workers."""

    DRIVER = ""  # the driver's own settings, if they say anything
    MANUAL = "manual"  # people: so many
    AUTO = "auto"  # people: between two numbers


class ScaleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers there should be: what people have set, and what the leading driver has made of it."""

    mode: ScaleMode = ScaleMode.DRIVER
    least: int = 0  # set by people, as is `most`
    most: int = 0
    wanted: int = -1  # decided by the leader; -1 while nobody decides
    bounds: str = ""  # the leader's, as "least,most"
    reason: str = ""  # of the last change, for people
    problem: str = ""  # what keeps the number from being reached
    decided_ms: int = 0  # server time of the last change


class BeatReply(StrEnum):
    """What a worker learns at a beat."""

    GO_ON = "go_on"
    DRAIN = "drain"
    FENCED = "fenced"


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a beat, and how many requests the leader wants back for others.

    First come those that have not begun; of the others only where it says so.
    """

    reply: BeatReply
    recalled: int = 0
    begun: bool = False


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports at every beat."""

    state: str
    reason: str = ""  # of a state that needs one
    model: str = ""
    slots: int = 0
    kv_tokens: int = 0
    context_tokens: int = 0
    prefill_tokens_per_s: float = 0.0  # as measured when it started; 0 while unknown
    decode_tokens_per_s: float = 0.0  # of a full batch
    max_batches: int = 0
    running: int = 0
    waiting: int = 0
    steps: int = 0
    generated_tokens: int = 0
    given_back: int = 0  # requests, for other workers, as the leader has asked
    connection: str = ""  # by which the beats come, if by one that is theirs alone: see presence
    telemetry: str = "{}"  # JSON; for people, never for decisions


class Session(Heartbeat, frozen=True, kw_only=True):
    """A row of the heartbeat table: what the worker said last, and what others know; ages are by the server's clock.

    Others set `state` and `reason` too, once it is dead.
    """

    id: str
    worker: str
    epoch: int
    instance: str = ""  # the life of the supervisor that it belongs to
    host: str = ""
    pid: int = 0
    device: str = ""
    cause: str = ""  # why it is dead, as a word: see Cause
    opened_ms: int = 0
    inhand_requests: int = 0
    inhand_tokens: int = 0
    isolated: int = 0  # batches of suspects in hand
    drain: int = 0
    watched_ms: int = 0  # when its supervisor last said that it is there
    progress_ms: int = 0  # when the engine last made a step, or had nothing to do
    beat_ms: int = 0
    beat_age_s: float = 0.0
    stalled_s: float = 0.0  # from progress_ms to its last beat
    batches: int = 0

    @property
    def watch_age_s(self) -> float:
        """Seconds since its supervisor last said that it is there."""
        return self.beat_age_s + (self.beat_ms - self.watched_ms) / 1000

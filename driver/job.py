"""A submitted job: its progress, its outputs as they finish or in request order, its text as it comes."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

import msgspec

from broker.errors import BrokerUnavailableError, IncompleteJobError, StokerError
from broker.messages import Output
from broker.results import START
from broker.states import JobState
from broker.store import Store
from driver import availability
from driver.deltas import Delta, TextMerge
from driver.ending import end_pending
from driver.following import ItemT, Source, collect, follow


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is. Counts are requests; `tokens_per_s` counts generated tokens since submission."""

    total: int
    done: int
    failed: int
    pending: int  # wait for a worker, or for an identical request
    running: int  # are with a worker
    completion_tokens: int
    elapsed_s: float
    tokens_per_s: float
    eta_s: float | None  # None while nothing is done
    shared: int = 0  # got the output of an identical request of the job
    cached: int = 0  # got the output of an identical request of another job
    saved_tokens: int = 0  # completion tokens of these, not generated again
    cancelled: bool = False
    client_lost: bool = False  # the job is incomplete: its client was gone before it had submitted everything


class Job:
    """A handle on a job in the ledger; any process with the id can make one."""

    def __init__(self, store: Store, job_id: str, *, obstacle: Callable[[str], str | None] | None = None) -> None:
        """`obstacle` says what keeps a model's requests from running; it may raise when they never will."""
        self._store = store
        self._obstacle = obstacle or partial(availability.obstacle, store)
        self.id = job_id

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    @property
    def state(self) -> JobState:
        """Where the job stands.

        Raises:
            JobNotFoundError: no such job, or its results have expired.
        """
        return self._store.queries.job(self.id).state

    def progress(self) -> Progress:
        """How far the job is, from the ledger.

        Raises:
            JobNotFoundError: no such job, or its results have expired.
        """
        record = self._store.queries.job(self.id)
        pending = self._store.queries.pending_count(self.id) + self._store.queries.follower_count(self.id)
        end_ms = record.finished_ms or self._store.queries.server_time_ms()
        elapsed_s = max(end_ms - record.created_ms, 1) / 1000
        left = record.submitted - record.done
        return Progress(
            total=record.submitted,
            done=record.done,
            failed=record.failed,
            pending=pending,
            running=max(left - pending, 0),
            completion_tokens=record.completion_tokens,
            elapsed_s=elapsed_s,
            tokens_per_s=record.completion_tokens / elapsed_s,
            eta_s=elapsed_s * left / record.done if record.done else None,
            shared=record.shared,
            cached=record.cached,
            saved_tokens=record.saved_completion_tokens,
            cancelled=record.cancelled,
            client_lost=record.client_lost,
        )

    def as_completed(self, timeout: float | None = None) -> Iterator[Output]:
        """Every output, in the order in which they finish, each as soon as it does.

        While nothing comes, a warning on the `stoker` logger says why: no driver, no worker for the model, no Redis.

        Raises:
            JobNotFoundError: no such job, or its results have expired.
            InvalidRequestError: `timeout` is no number.
            BrokerUnavailableError: Redis does not answer at the start; later it is waited for.
            NotFinishedError: not all outputs came within `timeout` seconds (also a TimeoutError).
            IncompleteJobError: behind the last output: the job's client was lost before it had submitted everything.
        """
        return self.follow(self._store.outputs(self.id, START), timeout)

    def stream(self, timeout: float | None = None) -> Iterator[Delta]:
        """The text of requests with `stream`, piece by piece as it is generated; several requests take turns.

        Nothing is given twice, whatever dies on the way. Each request's last delta has its `output`; a request without
        `stream` has that delta only. Put together, the deltas of a request that ends well are its output's text; see
        `Delta` for when it does not.

        Raises:
            As `as_completed`.
        """
        merge = TextMerge()
        for item in self.follow(self._store.live(self.id), timeout):
            if (delta := merge.add(item)) is not None:
                yield delta

    def get(self, timeout: float | None = None) -> list[Output]:
        """All outputs, in request order; waits for the job to be done.

        Raises:
            JobNotFoundError: no such job, or its results have expired.
            NotFinishedError: the job is not done within `timeout` seconds (also a TimeoutError); it goes on.
            IncompleteJobError: its client was lost before it had submitted everything; `outputs` has what there is.
            StokerError: some outputs were consumed and trimmed by another reader.
        """
        found: list[Output] = []
        try:
            total = collect(self.follow(self._store.outputs(self.id, START), timeout), found)
        except IncompleteJobError as error:
            error.outputs = in_order(found)
            raise
        outputs = in_order(found)
        if len(outputs) < total:
            raise StokerError(
                f"job {self.id}: {total - len(outputs)} of {total} outputs were trimmed by another reader"
            )
        return outputs

    def cancel(self) -> bool:
        """Stop the job: every request without an output gets one with the error `cancelled`. False when it is done.

        Raises:
            JobNotFoundError: no such job, or its results have expired.
        """
        if not self._store.ledger.cancel(self.id):
            return False
        end_pending(self._store, self.id, "cancelled", "the job was cancelled")
        return True

    def follow(self, source: Source[ItemT], timeout: float | None) -> Generator[ItemT, None, int]:
        """What a source of the job's news has to say, until all outputs are among it; see `as_completed`.

        Returns how many requests the job has.
        """
        return follow(self._store, self.id, source, obstacle=self._obstacle, late=self._late, timeout=timeout)

    def _late(self, timeout: float, model: str) -> str:
        late = f"job {self.id} is not done after {timeout:g} s"
        try:
            progress = self.progress()
            reason = self._obstacle(model)
        except BrokerUnavailableError as error:
            return f"{late}: {error}"
        return f"{late}: {progress.done} of {progress.total} requests are" + (f"; {reason}" if reason else "")


def in_order(outputs: Iterable[Output]) -> list[Output]:
    """Outputs in the order of their requests."""
    return sorted(outputs, key=lambda output: output.index)

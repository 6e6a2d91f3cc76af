"""The ledger: what Redis records of jobs, requests and batches. It is the truth; a Celery message is only a wake-up.

One typed call a Lua command. A request is pending, assigned or done, and moves between these only here.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from broker import codec
from broker.connection import BLOCK_LIMIT_S, RedisClient, broker_errors
from broker.errors import JobNotFoundError
from broker.keys import Keys
from broker.messages import JobState, Output, Request
from broker.scripts import Scripts


class NotLeaderError(Exception):
    """The caller lost the lead; another driver decides now."""


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
    cancelled: bool


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of a batch."""

    id: str
    job: str
    session: str
    state: str  # assigned, claimed
    assigned_ms: int
    size: int
    tokens: int


class ClaimedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a batch that still need an output, by index."""

    requests: tuple[tuple[int, Request], ...]
    cancelled: bool


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a commit."""

    accepted: int
    dropped: int
    job_done: bool


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits: its index and what it may occupy, in tokens."""

    index: int
    cost: int


class Ledger:
    """Typed calls of the ledger's commands on one Redis."""

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._redis = client
        self._keys = keys
        self._url = url
        self._scripts = Scripts(client, url)

    def submit(
        self, job_id: str, model: str, requests: Sequence[Request], *, offset: int, last: bool, priority: int = 0
    ) -> int:
        """Add requests at `offset` of a job, creating it at offset 0; `last` seals it. Returns requests so far.

        Sending the same run twice changes nothing.

        Raises:
            JobNotFoundError: the job is unknown, or sealed with fewer requests.

        """
        job = self._keys.job(job_id)
        args: list[Any] = [job_id, model, priority, offset, int(last)]
        for request in requests:
            args += [codec.encode(request), request.estimated_tokens()]
        keys = [job.record, job.requests, job.costs, job.pending, self._keys.jobs, self._keys.wake, self._keys.closing]
        submitted = int(self._scripts.run("submit", keys, args))
        if submitted < 0:
            raise JobNotFoundError(f"job {job_id} takes no requests at {offset}: it is unknown or already sealed")
        return submitted

    def assign(self, token: str, session_id: str, batch_id: str, job_id: str, indices: Sequence[int]) -> int:
        """Give pending requests to a session as one batch. Returns how many still were pending (0: no batch).

        Raises:
            NotLeaderError: `token` does not hold the lead.

        """
        job, batch, session = self._keys.job(job_id), self._keys.batch(batch_id), self._keys.session(session_id)
        keys = [
            self._keys.leader,
            session.record,
            session.batches,
            batch.record,
            batch.requests,
            job.record,
            job.pending,
            job.assigned,
            job.costs,
        ]
        assigned = int(self._scripts.run("assign", keys, [token, session_id, batch_id, job_id, *indices]))
        if assigned == -1:
            raise NotLeaderError
        return max(assigned, 0)

    def claim(self, batch_id: str, job_id: str, session_id: str) -> ClaimedBatch | None:
        """Take up a batch; None when it is not this session's (any more)."""
        job, batch, session = self._keys.job(job_id), self._keys.batch(batch_id), self._keys.session(session_id)
        keys = [batch.record, batch.requests, session.record, job.record, job.requests, job.assigned, job.committed]
        reply = self._scripts.run("claim", keys, [batch_id, session_id])
        if reply is None:
            return None
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        requests = sorted((int(index), codec.decode(Request, payload)) for index, payload in pairs)
        return ClaimedBatch(requests=tuple(requests), cancelled=bool(reply[0]))

    def commit(self, batch_id: str, job_id: str, session_id: str, outputs: Sequence[Output]) -> CommitResult:
        """Store outputs; the first of each request wins.

        Raises:
            JobNotFoundError: the job is unknown or has expired.

        """
        job, batch, session = self._keys.job(job_id), self._keys.batch(batch_id), self._keys.session(session_id)
        keys = [
            job.record,
            job.requests,
            job.costs,
            job.pending,
            job.assigned,
            job.committed,
            job.outputs,
            batch.requests,
            session.record,
            self._keys.closing,
            self._keys.wake,
            job.attempts,
        ]
        args: list[Any] = [job_id]
        for output in outputs:
            usage = output.usage
            failed = int(output.error is not None)
            args += [output.index, codec.encode(output), failed, usage.prompt_tokens, usage.completion_tokens]
        reply = self._scripts.run("commit", keys, args)
        if reply is None:
            raise JobNotFoundError(f"job {job_id} is unknown or has expired")
        return CommitResult(accepted=reply[0], dropped=reply[1], job_done=bool(reply[2]))

    def finish(self, batch_id: str, session_id: str) -> int:
        """End a batch whose requests all have outputs. Returns the requests still open; above 0 nothing changed."""
        batch, session = self._keys.batch(batch_id), self._keys.session(session_id)
        return int(self._scripts.run("finish", [batch.record, batch.requests, session.batches], [batch_id, session_id]))

    def release(self, batch: BatchRecord, *, count_attempt: bool) -> int:
        """Take a batch back from its session. Returns the requests that are pending again."""
        job, session = self._keys.job(batch.job), self._keys.session(batch.session)
        keys_of_batch = self._keys.batch(batch.id)
        keys = [
            keys_of_batch.record,
            keys_of_batch.requests,
            session.record,
            session.batches,
            job.pending,
            job.assigned,
            job.committed,
            job.attempts,
            self._keys.wake,
        ]
        released = self._scripts.run("release", keys, [batch.id, batch.session, int(count_attempt)])
        return max(int(released), 0)

    def cancel(self, job_id: str) -> bool:
        """Mark a job cancelled. False when it is already done.

        Raises:
            JobNotFoundError: no such job.

        """
        keys = [self._keys.job(job_id).record, self._keys.closing]
        result = int(self._scripts.run("cancel", keys, [job_id]))
        if result < 0:
            raise JobNotFoundError(f"job {job_id} is unknown or has expired")
        return result == 1

    def close(self, job_id: str, ttl_s: int) -> bool:
        """End a complete job; its outputs can be read for `ttl_s` seconds more. False when it was closed before."""
        keys = [self._keys.jobs, self._keys.closing, *self._keys.job(job_id).all()]
        return bool(self._scripts.run("close", keys, [job_id, ttl_s]))

    def job(self, job_id: str) -> JobRecord:
        """The job's record.

        Raises:
            JobNotFoundError: no such job.

        """
        with broker_errors(self._url):
            fields = self._redis.hgetall(self._keys.job(job_id).record)
        if not fields:
            raise JobNotFoundError(f"job {job_id} is unknown or has expired")
        return codec.from_fields(JobRecord, fields)

    def open_jobs(self) -> list[JobRecord]:
        """Every job that is not closed, oldest first."""
        with broker_errors(self._url):
            ids = [job_id.decode() for job_id in self._redis.zrange(self._keys.jobs, 0, -1)]
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in ids:
                pipeline.hgetall(self._keys.job(job_id).record)
            records = pipeline.execute() if ids else []
        return [codec.from_fields(JobRecord, fields) for fields in records if fields]

    def pending(self, job_id: str, limit: int) -> tuple[PendingRequest, ...]:
        """The job's first pending requests, in order, at most `limit`."""
        job = self._keys.job(job_id)
        with broker_errors(self._url):
            indices = self._redis.zrange(job.pending, 0, limit - 1)
            costs = self._redis.hmget(job.costs, indices) if indices else []
        pairs = zip(indices, costs, strict=True)
        return tuple(PendingRequest(index=int(index), cost=int(cost or 0)) for index, cost in pairs)

    def pending_count(self, job_id: str) -> int:
        """How many of the job's requests wait for a worker."""
        with broker_errors(self._url):
            return int(self._redis.zcard(self._keys.job(job_id).pending))

    def batches(self, session_id: str) -> list[BatchRecord]:
        """The batches that a session holds."""
        with broker_errors(self._url):
            ids = [item.decode() for item in self._redis.smembers(self._keys.session(session_id).batches)]
            records = [self._redis.hgetall(self._keys.batch(batch_id).record) for batch_id in ids]
        return [codec.from_fields(BatchRecord, fields) for fields in records if fields]

    def closing_jobs(self) -> list[tuple[str, int]]:
        """Complete jobs whose Celery result may not be stored yet, with the server time (ms) of completion."""
        with broker_errors(self._url):
            return [
                (job_id.decode(), int(at))
                for job_id, at in self._redis.zrange(self._keys.closing, 0, -1, withscores=True)
            ]

    def server_time_ms(self) -> int:
        """Redis's clock."""
        with broker_errors(self._url):
            seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def wait_for_change(self, timeout_s: float) -> bool:
        """Wait until something happened that a driver should look at. False when nothing did."""
        with broker_errors(self._url):
            return self._redis.blpop([self._keys.wake], timeout=min(timeout_s, BLOCK_LIMIT_S)) is not None

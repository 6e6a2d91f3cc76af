"""Reads the ledger; changes nothing. Each query is a snapshot that may be old when it is used."""

import contextlib
import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from broker import codec
from broker.connection import BLOCK_LIMIT_S, RedisClient, broker_errors
from broker.errors import JobNotFoundError, MessageError
from broker.fronts import COUNTERS, front, pending
from broker.keys import Keys
from broker.messages import Request
from broker.records import (
    BatchRecord,
    JobFront,
    JobRecord,
    Load,
    PendingRequest,
    Policy,
    QuarantinedRequest,
    Sharing,
    WaitingJob,
)

logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT")


class Queries:
    """What the ledger says. Every call raises BrokerUnavailableError when Redis does not answer."""

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._redis = client
        self._keys = keys
        self._url = url

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

    def open_jobs(self, start: int = 0, count: int = -1) -> list[JobRecord]:
        """Jobs that are not closed, oldest first: all, or `count` of them from place `start` on."""
        last = -1 if count < 0 else start + count - 1
        with broker_errors(self._url):
            ids = [job_id.decode() for job_id in self._redis.zrange(self._keys.jobs, start, last)]
            records = self._hashes([self._keys.job(job_id).record for job_id in ids])
        return _readable(JobRecord, records)

    def waiting_jobs(self) -> list[WaitingJob]:
        """Jobs that have pending requests, by priority and then by age."""
        with broker_errors(self._url):
            members = self._redis.zrange(self._keys.waiting, 0, -1)
        return self.described([member.decode().partition(" ")[0] for member in members])

    def described(self, job_ids: Sequence[str]) -> list[WaitingJob]:
        """What never changes of these jobs. One that is gone, or cannot be read, is left out."""
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in job_ids:
                pipeline.hmget(self._keys.job(job_id).record, WaitingJob.__struct_fields__)
            rows = pipeline.execute() if job_ids else []
        records = [dict(zip(WaitingJob.__struct_fields__, row, strict=True)) for row in rows]
        return _readable(WaitingJob, [_given(record) for record in records])

    def stopping_jobs(self, now_ms: int) -> set[str]:
        """Jobs that are cancelled or past their deadline: what waits in them must not run."""
        with broker_errors(self._url):
            return {job_id.decode() for job_id in self._redis.zrange(self._keys.stopping, "-inf", now_ms, byscore=True)}

    def pending(self, job_id: str, limit: int) -> tuple[PendingRequest, ...]:
        """The job's first pending requests, in order, at most `limit`."""
        return self.fronts([job_id], limit)[0].pending

    def fronts(self, job_ids: Sequence[str], limit: int) -> list[JobFront]:
        """Each job's first pending requests, in order, at most `limit`, and its counters; two round trips in all."""
        keys = [self._keys.job(job_id) for job_id in job_ids]
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            for job in keys:
                pipeline.zrange(job.pending, 0, limit - 1)
                pipeline.zcard(job.pending)
                pipeline.hmget(job.record, COUNTERS)
                pipeline.hlen(job.attempts)
            found = pipeline.execute()
            for job, indices, tried in zip(keys, found[::4], found[3::4], strict=True):
                pipeline.hmget(job.costs, indices or [0])
                pipeline.hmget(job.attempts, (indices or [0]) if tried else ["none"])  # few jobs have any
            replies = pipeline.execute()
        rows = zip(found[::4], found[1::4], found[2::4], replies[::2], replies[1::2], strict=True)
        return [
            front(pending(indices, costs, attempts), backlog, counters)
            for indices, backlog, counters, costs, attempts in rows
        ]

    def pending_count(self, job_id: str) -> int:
        """How many of the job's requests wait for a worker."""
        with broker_errors(self._url):
            return int(self._redis.zcard(self._keys.job(job_id).pending))

    def follower_count(self, job_id: str) -> int:
        """How many of the job's requests wait for the output of an identical one."""
        with broker_errors(self._url):
            return int(self._redis.zcard(self._keys.job(job_id).followers))

    def request(self, job_id: str, index: int) -> Request | None:
        """A request that has no output yet; None otherwise."""
        with broker_errors(self._url):
            payload = self._redis.hget(self._keys.job(job_id).requests, index)
        return codec.decode(Request, payload) if payload else None

    def attempts(self, job_id: str, index: int) -> int:
        """The deaths that a request was part of."""
        with broker_errors(self._url):
            return int(self._redis.hget(self._keys.job(job_id).attempts, index) or 0)

    def losses(self, job_id: str, index: int) -> int:
        """How often a whole worker was lost while it ran a request."""
        with broker_errors(self._url):
            return int(self._redis.hget(self._keys.job(job_id).losses, index) or 0)

    def batches(self, session_id: str) -> list[BatchRecord]:
        """The batches that a session holds."""
        with broker_errors(self._url):
            ids = [item.decode() for item in self._redis.smembers(self._keys.session(session_id).batches)]
            records = self._hashes([self._keys.batch(batch_id).record for batch_id in ids])
        return _readable(BatchRecord, records)

    def batch_indices(self, batch_id: str) -> tuple[int, ...]:
        """The requests of a batch that are still open."""
        with broker_errors(self._url):
            return tuple(sorted(int(index) for index in self._redis.hkeys(self._keys.batch(batch_id).requests)))

    def cancelled(self, job_ids: list[str]) -> list[bool]:
        """For each job, whether it is cancelled."""
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in job_ids:
                pipeline.hget(self._keys.job(job_id).record, "cancelled")
            return [flag == b"1" for flag in pipeline.execute()]

    def closing_jobs(self) -> list[tuple[str, int]]:
        """Complete jobs whose Celery result may not be stored yet, with the server time (ms) of completion."""
        with broker_errors(self._url):
            entries = self._redis.zrange(self._keys.closing, 0, -1, withscores=True)
        return [(job_id.decode(), int(completed_ms)) for job_id, completed_ms in entries]

    def load(self, user: str | None = None) -> Load:
        """What waits or runs, of all or of one user."""
        names = ["requests", "tokens"] if user is None else [f"requests {user}", f"tokens {user}"]
        with broker_errors(self._url):
            requests, tokens = self._redis.hmget(self._keys.load, names)
        return Load(requests=int(requests or 0), tokens=int(tokens or 0))

    def policy(self) -> Policy:
        """What the leading driver has set for all."""
        with broker_errors(self._url):
            return codec.from_fields(Policy, self._redis.hgetall(self._keys.policy))

    def sharing(self) -> Sharing:
        """What was answered without being generated."""
        with broker_errors(self._url):
            fields = self._redis.hgetall(self._keys.sharing)
            entries = int(self._redis.zcard(self._keys.cache_times))
        found = codec.from_fields(Sharing, fields)
        used = found.cache_bytes if entries else 0
        return msgspec.structs.replace(found, cache_entries=entries, cache_bytes=used)

    def quarantined(self) -> list[QuarantinedRequest]:
        """Requests that were given up, oldest first."""
        with broker_errors(self._url):
            names = self._redis.zrange(self._keys.quarantine_times, 0, -1)
            entries = self._redis.hmget(self._keys.quarantine, names) if names else []
        readable: list[QuarantinedRequest] = []
        for entry in entries:
            with contextlib.suppress(MessageError):
                readable.append(codec.decode(QuarantinedRequest, entry or b""))
        return readable

    def server_time_ms(self) -> int:
        """Redis's clock."""
        with broker_errors(self._url):
            seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def uptime_s(self) -> int:
        """How long Redis has been running."""
        with broker_errors(self._url):
            return int(self._redis.info("server")["uptime_in_seconds"])

    def wait_for_change(self, timeout_s: float) -> bool:
        """Wait until something happened that a driver should look at. False when nothing did."""
        with broker_errors(self._url):
            return self._redis.blpop([self._keys.wake], timeout=min(timeout_s, BLOCK_LIMIT_S)) is not None

    def _hashes(self, keys: list[str]) -> list[dict[bytes, bytes]]:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        return pipeline.execute() if keys else []


def _given(record: dict[str, bytes | None]) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in record.items() if value is not None}


def _readable(kind: type[RecordT], hashes: list[dict[bytes, bytes]]) -> list[RecordT]:
    """The records that can be read. One that cannot is nobody's, and must not stop the others."""
    records: list[RecordT] = []
    for fields in hashes:
        try:
            if fields:
                records.append(codec.from_fields(kind, fields))
        except MessageError as error:
            logger.debug("a record is skipped: %s", error)
    return records

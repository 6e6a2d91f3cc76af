"""The ledger: what Redis records of jobs, requests and batches. It is the truth; a Celery message is only a wake-up.

One typed call a Lua command; `queries` reads. A request is pending, assigned or done, and moves only here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from broker import claiming, codec, ledger_keys, settlement, submission
from broker.connection import RedisClient
from broker.deltas import TextDelta
from broker.errors import JobNotFoundError
from broker.keys import Keys
from broker.messages import Output, Request
from broker.records import BatchRecord, ClaimedBatch, CommitResult, Policy, QuarantinedRequest
from broker.scripts import Scripts
from broker.wakeup import wakeup

QUARANTINE_TTL_MS = 7 * 86_400_000
QUARANTINE_LIMIT = 10_000
DELTA_LIMIT = 10_000  # pieces of text that one job keeps for its readers


class NotLeaderError(Exception):
    """The caller lost the lead; another driver decides now."""


class ClientReturnedError(Exception):
    """The client of a job was taken for gone, and is not; what was made of that has to be made again."""


class Ledger:
    """Typed calls of the ledger's commands on one Redis.

    Every call raises BrokerUnavailableError when Redis does not answer, and may then be made again: each command
    changes nothing the second time.
    """

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._keys = keys
        self._scripts = Scripts(client, url)

    def submit(
        self,
        job_id: str,
        model: str,
        requests: Sequence[Request],
        *,
        offset: int,
        last: bool,
        priority: int = 0,
        deadline_s: float | None = None,
        user: str = "",
        announced: tuple[int, int] = (0, 0),
        weight: float = 1.0,
    ) -> int:
        """Add requests at `offset` of a job, creating it at offset 0; `last` seals it. Returns requests so far.

        The other options count at the creation of the job; `deadline_s` is seconds from then. `announced` requests and
        tokens are what the whole job will have: it is admitted as a whole, and its runs then have their room.

        Raises:
            JobNotFoundError: the job is unknown, or sealed with fewer requests.
            QueueFullError: a limit is reached; nothing was changed.
        """
        deadline_ms = 0 if deadline_s is None else max(1, int(deadline_s * 1000))
        args: list[Any] = [job_id, model, priority, offset, int(last), deadline_ms, user, *announced, weight]
        args += [self._keys.urgent, *submission.fields(requests)]
        reply = self._scripts.run("submit", ledger_keys.submit(self._keys, job_id), args)
        if isinstance(reply, list):
            raise submission.refusal(reply).error(user)
        if reply < 0:
            raise JobNotFoundError(
                f"job {job_id} takes no requests at {offset}: it is unknown or already sealed, "
                "as it is when its client was silent for too long"
            )
        return int(reply)

    def renew(self, job_id: str) -> bool:
        """Say that the client of an open job is there. False when the job takes no more requests, or is unknown."""
        return bool(self._scripts.run("renew", [self._keys.job(job_id).record], []))

    def abandon(self, job_id: str, touched_ms: int) -> bool:
        """Seal an open job whose client, last heard of at `touched_ms`, is gone, and note so. False when it is not."""
        return bool(self._scripts.run("abandon", ledger_keys.abandon(self._keys, job_id), [job_id, touched_ms]))

    def configure(self, token: str, policy: Policy) -> None:
        """Make these limits everybody's.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        fields = [item for name, value in msgspec.structs.asdict(policy).items() for item in (name, int(value))]
        if int(self._scripts.run("configure", [self._keys.leader, self._keys.policy], [token, *fields])) < 0:
            raise NotLeaderError

    def assign(
        self,
        token: str,
        session_id: str,
        batch_id: str,
        job_id: str,
        indices: Sequence[int],
        *,
        isolated: bool = False,
        tokens: Sequence[int] = (),
        worker: str = "",
    ) -> int:
        """Give pending requests to a session as one batch. Returns how many still were pending (0: no batch).

        `tokens` is what each is expected to occupy; without it, all that it may. `worker`, the session's, is woken;
        without it nobody is.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        keys = ledger_keys.assign(self._keys, session_id, batch_id, job_id, worker)
        args: list[Any] = [token, session_id, batch_id, job_id, int(isolated)]
        args += [codec.pack(indices), codec.pack(tokens) if tokens else b""]
        args.append(wakeup(worker, batch_id, job_id) if worker else b"")
        assigned = int(self._scripts.run("assign", keys, args))
        if assigned == -1:
            raise NotLeaderError
        return max(assigned, 0)

    def claim(self, batch_id: str, job_id: str, session_id: str) -> ClaimedBatch | None:
        """Take up a batch; None when it is not this session's (any more)."""
        keys = ledger_keys.claim(self._keys, session_id, batch_id, job_id)
        reply = self._scripts.run("claim", keys, [batch_id, session_id, job_id])
        if reply is None:
            return None
        return claiming.batch(reply)

    def checkpoint(self, batch_id: str, job_id: str, session_id: str, tokens: Mapping[int, tuple[int, ...]]) -> int:
        """Save the tokens that requests have so far. Returns how many were still this batch's."""
        job, batch = self._keys.job(job_id), self._keys.batch(batch_id)
        args: list[Any] = [batch_id, session_id]
        for index, ids in tokens.items():
            args += [index, msgspec.msgpack.encode(ids)]
        return int(self._scripts.run("checkpoint", [batch.record, job.assigned, job.checkpoints], args))

    def publish(self, batch_id: str, job_id: str, session_id: str, deltas: Iterable[TextDelta]) -> int:
        """Send new text of requests to whoever reads along. Returns how many were still this batch's."""
        job, batch = self._keys.job(job_id), self._keys.batch(batch_id)
        args: list[Any] = [batch_id, session_id, DELTA_LIMIT]
        for delta in deltas:
            args += [delta.index, codec.encode(delta)]
        return int(self._scripts.run("publish", [batch.record, job.assigned, job.deltas], args))

    def commit(self, batch_id: str, job_id: str, session_id: str, outputs: Sequence[Output]) -> CommitResult:
        """Store outputs; the first of each request wins. Without a worker, batch and session are "".

        Raises:
            JobNotFoundError: the job is unknown or has expired.
        """
        keys = ledger_keys.commit(self._keys, session_id, batch_id, job_id)
        result, rest = CommitResult(accepted=0, dropped=0, job_done=False, shared=0), outputs
        while True:
            reply = self._scripts.run("commit", keys, [job_id, *settlement.fields(rest)])
            if reply is None:
                raise JobNotFoundError(f"job {job_id} is unknown or has expired")
            result, seen = settlement.added(result, reply)
            rest = rest[seen:]
            if not rest:
                return result

    def finish(self, batch_id: str, session_id: str) -> int:
        """End a batch whose requests all have outputs. Returns the requests still open; above 0 nothing changed."""
        keys = ledger_keys.finish(self._keys, session_id, batch_id)
        return int(self._scripts.run("finish", keys, [batch_id, session_id]))

    def release(
        self,
        batch_id: str,
        job_id: str,
        session_id: str,
        *,
        count_attempt: bool,
        forgiven: int = 0,
        indices: Sequence[int] = (),
    ) -> int:
        """Take requests of a batch back from its session; without `indices` all of them, and the batch ends.

        Returns the requests that are pending again. An attempt counts only if the batch had been claimed, and for each
        request only after as many losses as are `forgiven`.
        """
        keys = ledger_keys.release(self._keys, session_id, batch_id, job_id)
        args = [batch_id, session_id, int(count_attempt), job_id, forgiven, *indices]
        return max(int(self._scripts.run("release", keys, args)), 0)

    def recall(self, token: str, session_id: str, order_id: str, count: int, *, begun: bool = False) -> bool:
        """Ask a session to give back so many requests, those that it has not begun; it learns so at its next beat.

        Where these are fewer, and `begun`, others too with their tokens so far. False when the session is gone, or was
        given this order before.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        keys = [self._keys.leader, self._keys.session(session_id).record]
        asked = int(self._scripts.run("recall", keys, [token, order_id, count, int(begun)]))
        if asked < 0:
            raise NotLeaderError
        return asked == 1

    def release_batch(self, batch: BatchRecord, *, count_attempt: bool, forgiven: int = 0) -> int:
        """Take a whole batch back from its session, as `release` does. Returns the requests that are pending again."""
        return self.release(batch.id, batch.job, batch.session, count_attempt=count_attempt, forgiven=forgiven)

    def quarantine(self, entry: QuarantinedRequest) -> None:
        """Keep a copy of a request that was given up; its error output is committed separately."""
        keys = [self._keys.quarantine, self._keys.quarantine_times]
        name = quarantine_name(entry)
        self._scripts.run("quarantine", keys, [name, codec.encode(entry), QUARANTINE_TTL_MS, QUARANTINE_LIMIT])

    def cancel(self, job_id: str) -> bool:
        """Mark a job cancelled and sealed. False when it is already done.

        Raises:
            JobNotFoundError: no such job.
        """
        result = int(self._scripts.run("cancel", ledger_keys.cancel(self._keys, job_id), [job_id]))
        if result < 0:
            raise JobNotFoundError(f"job {job_id} is unknown or has expired")
        return result == 1

    def close(self, job_id: str, ttl_s: int, *, client_lost: bool = False) -> bool:
        """End a complete job; its outputs can be read for `ttl_s` seconds more. False when it was closed before.

        `client_lost` is what its Celery result says.

        Raises:
            ClientReturnedError: the result says so, and the client came back meanwhile; nothing was changed.
        """
        closed = int(
            self._scripts.run("close", ledger_keys.close(self._keys, job_id), [job_id, ttl_s, int(client_lost)])
        )
        if closed < 0:
            raise ClientReturnedError
        return closed == 1


def quarantine_name(entry: QuarantinedRequest) -> str:
    """How people name a quarantined request: `job/index`."""
    return f"{entry.job_id}/{entry.index}"

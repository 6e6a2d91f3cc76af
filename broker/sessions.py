"""Worker sessions: who is alive, in which state, with what room. A session is a worker's lease on its batches.

All times are the Redis server's, so that no worker's clock matters.
"""

import contextlib
from collections.abc import Iterable, Mapping

import msgspec

from broker import codec
from broker.connection import RedisClient, broker_errors
from broker.errors import MessageError, WorkerNameTakenError
from broker.keys import Keys
from broker.records import BeatAnswer, BeatReply, Cause, Heartbeat, Session
from broker.scripts import Scripts
from broker.topology import queue_name

NAME_TTL_S = 7 * 86_400
SWEEP_PAGE = 1_000


class Sessions:
    """The heartbeat table."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, lease_s: float) -> None:
        self._redis = client
        self._keys = keys
        self._url = url
        self._lease_ms = int(lease_s * 1000)
        self._scripts = Scripts(client, url)

    def open(self, session_id: str, worker: str, instance: str, fields: Mapping[str, str | int]) -> int:
        """Begin a session under a worker's name; an older session of the same instance is replaced. Returns the epoch.

        Raises:
            WorkerNameTakenError: a live session of another instance has the name.
        """
        flat = [part for item in fields.items() for part in item]
        key = self._keys.worker(worker)
        while True:
            with broker_errors(self._url):
                seen = (self._redis.hget(key, "session") or b"").decode()
            own = self._keys.session(session_id).record
            old = self._keys.session(seen).record if seen else own
            args = [session_id, worker, instance, seen, self._lease_ms, NAME_TTL_S, *flat]
            epoch = int(self._scripts.run("open_session", [key, self._keys.sessions, own, old], args))
            if epoch > 0:
                return epoch
            if epoch == 0:
                raise WorkerNameTakenError(f"worker name {worker!r} is in use by a live session; choose another name")

    def beat(self, session_id: str, worker: str, heartbeat: Heartbeat) -> BeatAnswer:
        """Renew the lease and report. An order of the leader's comes with one answer only."""
        session = self._keys.session(session_id)
        flat = [part for item in msgspec.structs.asdict(heartbeat).items() for part in item]
        keys = [session.record, self._keys.sessions, self._keys.worker(worker), self._keys.wake]
        code, recalled, begun = self._scripts.run("beat", keys, [session_id, NAME_TTL_S, *flat])
        reply = BeatReply.FENCED if code < 0 else BeatReply.DRAIN if code else BeatReply.GO_ON
        return BeatAnswer(reply=reply, recalled=recalled, begun=begun == 1)

    def expire(
        self,
        session_id: str,
        cause: Cause,
        reason: str,
        judged_beat_ms: int | None = None,
        *,
        instance: str = "",
    ) -> bool:
        """Mark a session dead, unless it has beaten since `judged_beat_ms`, or is not `instance`'s. True when done."""
        keys = [self._keys.session(session_id).record, self._keys.sessions, self._keys.wake]
        judged = "" if judged_beat_ms is None else judged_beat_ms
        return bool(self._scripts.run("expire", keys, [session_id, reason, judged, cause, instance]))

    def forget(self, session: Session) -> bool:
        """Remove a dead session that holds nothing, with what Celery kept for it. False when it still holds batches."""
        keys = self._keys.session(session.id)
        # The queue belongs to the name: it goes only if no newer session consumes it.
        queue = [] if self._is_succeeded(session) else [queue_name(session.worker)]
        args = [keys.record, keys.batches, self._keys.sessions, *keys.transport(), *queue]
        return bool(self._scripts.run("forget", args, [session.id]))

    def sweep(self, cursor: int) -> int:
        """Delete what Celery still wrote for sessions that are forgotten; looks at one page of the key space.

        A process that was frozen may take a message before it learns that it is fenced. Returns the next cursor.
        """
        with broker_errors(self._url):
            cursor, found = self._redis.scan(cursor, match=self._keys.transport_pattern(), count=SWEEP_PAGE)
            for key in found:
                session_id = self._keys.session_of_transport(key.decode())
                if not self._redis.exists(self._keys.session(session_id).record):
                    self._redis.delete(key)
        return int(cursor)

    def request_drain(self, session_id: str) -> bool:
        """Ask a worker to finish what it has and stop; it learns so at its next beat. False when it is gone."""
        return bool(self._scripts.run("drain", [self._keys.session(session_id).record], []))

    def state(self, session_id: str) -> str | None:
        """A session's state; None when it is forgotten."""
        with broker_errors(self._url):
            value = self._redis.hget(self._keys.session(session_id).record, "state")
        return value.decode() if value else None

    def watch(self, session_id: str, instance: str) -> str | None:
        """Say that this session's supervisor is there. Returns its state; None when it is forgotten."""
        value = self._scripts.run("watch", [self._keys.session(session_id).record], [instance])
        return value.decode() if value else None

    def current(self, worker: str, *, instance: str = "") -> str | None:
        """The id of the latest session under a worker's name; None if that is not `instance`'s."""
        with broker_errors(self._url):
            session_id, owner = self._redis.hmget(self._keys.worker(worker), ["session", "instance"])
        if session_id is None or (instance and owner.decode() != instance):
            return None
        return session_id.decode()

    def table(self) -> list[Session]:
        """Every session that is not forgotten, by worker name."""
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zrange(self._keys.sessions, 0, -1, withscores=True)
            pipeline.time()
            beats, (seconds, micros) = pipeline.execute()
            self.queue_records(pipeline, [session_id for session_id, _ in beats])
            replies = pipeline.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        rows = zip(beats, replies[::2], replies[1::2], strict=True)
        return session_rows([(beat, fields, batches) for (_, beat), fields, batches in rows], now_ms)

    def queue_records(self, pipeline: RedisClient, session_ids: Iterable[bytes]) -> None:
        """Have a pipeline read each session's record and the number of its batches."""
        for session_id in session_ids:
            keys = self._keys.session(session_id.decode())
            pipeline.hgetall(keys.record)
            pipeline.scard(keys.batches)

    def _is_succeeded(self, session: Session) -> bool:
        current = self.current(session.worker)
        return current is not None and current != session.id


def session_rows(replies: Iterable[tuple[float, dict[bytes, bytes], int]], now_ms: int) -> list[Session]:
    """The heartbeat table by worker name, from each session's last beat, record and number of batches.

    A record that cannot be read is nobody's, and must not stop the others.
    """
    sessions: list[Session] = []
    for beat, fields, batches in replies:
        with contextlib.suppress(MessageError):
            sessions.append(_session(fields, int(beat), now_ms, batches))
    return sorted(sessions, key=lambda session: session.worker)


def _session(fields: dict[bytes, bytes], beat_ms: int, now_ms: int, batches: int) -> Session:
    row = codec.from_fields(Session, fields)
    age_s = max(0, now_ms - beat_ms) / 1000
    # As of its last beat: who is silent may have made steps that nobody has heard of.
    stalled_s = max(0, beat_ms - row.progress_ms) / 1000
    return msgspec.structs.replace(row, beat_ms=beat_ms, beat_age_s=age_s, stalled_s=stalled_s, batches=batches)

"""What a leader looks at before it decides: who leads, the server's time, who works, what waits, what must not run.

One round trip, as long as no worker or job has come since the last look: a request that comes to an idle system waits
for it.
"""

from typing import Any

import msgspec

from broker.connection import RedisClient, broker_errors
from broker.keys import Keys
from broker.records import Session, WaitingChanges
from broker.sessions import Sessions, session_rows
from broker.waiting import WaitingJobs

STOPPING_PAGE = 64


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """One look, `now_ms` by the server's clock."""

    leader: str  # token of the driver that leads; "" when none does
    now_ms: int
    sessions: list[Session]
    stopping: set[str]  # jobs that are cancelled or past their deadline
    changes: WaitingChanges  # since the last look: each is given once


class Lookout:
    """Looks, and remembers which workers there are."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, sessions: Sessions, waiting: WaitingJobs) -> None:
        self._redis = client
        self._keys = keys
        self._url = url
        self._sessions = sessions
        self._waiting = waiting
        self._known: list[bytes] = []

    def look(self) -> Outlook:
        """How things stand now.

        Raises:
            BrokerUnavailableError: Redis does not answer.
        """
        known, keys = self._known, self._keys
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.delete(keys.wake)  # whatever it was, this look sees it
            self._waiting.queue(pipeline)
            pipeline.get(keys.leader)
            pipeline.time()
            pipeline.zrange(keys.stopping, 0, STOPPING_PAGE - 1, withscores=True)
            pipeline.zrange(keys.sessions, 0, -1, withscores=True)
            self._sessions.queue_records(pipeline, known)
            _, count, entries, leader, (seconds, micros), stopping, beats, *replies = pipeline.execute()
            found = dict(zip(known, zip(replies[::2], replies[1::2], strict=True), strict=True))
            self._known = [session_id for session_id, _ in beats]
            new = [session_id for session_id in self._known if session_id not in found]
            if new:
                self._sessions.queue_records(pipeline, new)
                replies = pipeline.execute()
                found |= dict(zip(new, zip(replies[::2], replies[1::2], strict=True), strict=True))
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return Outlook(
            leader=(leader or b"").decode(),
            now_ms=now_ms,
            sessions=session_rows([(beat, *found[session_id]) for session_id, beat in beats], now_ms),
            stopping=self._stopping(stopping, now_ms),
            changes=self._waiting.take(count, entries),
        )

    def _stopping(self, page: list[tuple[bytes, float]], now_ms: int) -> set[str]:
        due: list[Any] = [job_id for job_id, at_ms in page if at_ms <= now_ms]
        if len(due) == STOPPING_PAGE:
            with broker_errors(self._url):
                due = self._redis.zrange(self._keys.stopping, "-inf", now_ms, byscore=True)
        return {job_id.decode() for job_id in due}

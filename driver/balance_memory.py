"""What balancing remembers, to be calm: queues that last, and orders that may still be under way. Pure.

No model has a second order until the first can have shown, and what has moved then stays for a while. Who gave nothing
back holds what cannot move, and is asked again ever more seldom.
"""

from collections.abc import Iterable, Sequence

import msgspec

from broker.records import Session
from broker.states import WorkerState
from driver.snapshot import Recall

HOLD_MS = 900  # so long requests must wait at a worker: a second beat says so, too
CALM_MS = 3000  # between two orders for a model; so long who was asked gets nothing new. Longer where beats are rarer
MAX_REST_MS = 60_000  # between two orders to a worker that gives nothing back


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An order that may still be under way."""

    session_id: str
    model: str
    at_ms: int
    given_back: int  # requests, by the worker before

    def is_under_way(self, now_ms: int, calm_ms: int) -> bool:
        """Whether what comes of it may not have shown yet."""
        return abs(now_ms - self.at_ms) < calm_ms  # after a failover the server's clock may be behind


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker is not asked, as it gave nothing back."""

    until_ms: int
    length_ms: int


class BalanceMemory:
    """What balancing remembers from round to round; lost with the driver, and learned again by the next."""

    def __init__(self, heartbeat_interval: float = 1.0) -> None:
        # A worker reads an order at one beat, and shows at another what came of it.
        self._beat_s = max(heartbeat_interval, 1.0)
        self._waits_since_ms: dict[str, int] = {}  # session: since which beat requests wait there
        self._asked: list[Asked] = []
        self._rests: dict[str, Rest] = {}  # by session
        self._given_back: dict[str, int] = {}  # by session, as of its latest beat

    @property
    def _calm_ms(self) -> int:
        return int(CALM_MS * self._beat_s)

    def note(self, sessions: Sequence[Session]) -> None:
        """Learn from the latest beats, whose times are the server's, as are those of orders."""
        waits = [row for row in sessions if row.waiting]
        self._waits_since_ms = {
            row.id: min(self._waits_since_ms.get(row.id, row.beat_ms), row.beat_ms) for row in waits
        }
        self._given_back = {row.id: row.given_back for row in sessions}
        self._rests = {session: rest for session, rest in self._rests.items() if session in self._given_back}
        now_ms = max((row.beat_ms for row in sessions), default=0)
        for asked in [asked for asked in self._asked if not asked.is_under_way(now_ms, self._calm_ms)]:
            self._asked.remove(asked)
            self._learn(asked, now_ms)

    def _learn(self, asked: Asked, now_ms: int) -> None:
        """What came of an order that is over: nothing may have, again and again."""
        before = self._rests.pop(asked.session_id, None)
        if self._given_back.get(asked.session_id) == asked.given_back:
            length_ms = min(2 * before.length_ms if before else self._calm_ms, MAX_REST_MS)
            self._rests[asked.session_id] = Rest(until_ms=now_ms + length_ms, length_ms=length_ms)

    def _rested(self, session: Session) -> bool:
        rest = self._rests.get(session.id)
        return rest is None or not 0 < rest.until_ms - session.beat_ms <= rest.length_ms

    def waits_for_long(self, session: Session) -> bool:
        """Whether requests have waited at a worker from one beat to another."""
        return session.beat_ms - self._waits_since_ms.get(session.id, session.beat_ms) >= HOLD_MS

    @property
    def asked_models(self) -> set[str]:
        """Models for which an order may be under way."""
        return {asked.model for asked in self._asked}

    @property
    def asked_sessions(self) -> set[str]:
        """Workers that are giving back."""
        return {asked.session_id for asked in self._asked}

    def lasting(self, sessions: Iterable[Session]) -> list[Session]:
        """Those to ask, with something in hand. Where requests wait, they have done so from one beat to another."""
        rows = [row for row in sessions if (self.waits_for_long(row) if row.waiting else row.running)]
        return [row for row in rows if self._rested(row)]

    def leaving(self, sessions: Iterable[Session]) -> list[Session]:
        """Those that leave with something in hand, and have not been asked."""
        rows = [row for row in sessions if (row.drain or row.state != WorkerState.READY) and self._rested(row)]
        return [row for row in rows if row.waiting + row.running and row.id not in self.asked_sessions]

    def note_order(self, recall: Recall, now_ms: int) -> None:
        """A worker is asked now."""
        given_back = self._given_back.get(recall.session_id, 0)
        self._asked.append(Asked(session_id=recall.session_id, model=recall.model, at_ms=now_ms, given_back=given_back))

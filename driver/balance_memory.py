"""What balancing remembers, to be calm: queues that last, and orders that may still be under way. Pure.

No model has a second order until the first can have shown, and what has moved then stays for a while.
"""

from collections.abc import Iterable, Sequence

import msgspec

from broker.records import Session
from broker.states import WorkerState
from driver.snapshot import Recall

HOLD_MS = 900  # so long requests must wait at a worker: a second beat says so, too
CALM_MS = 3000  # between two orders for a model; so long who was asked gets nothing new


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An order that may still be under way."""

    session_id: str
    model: str
    at_ms: int


class BalanceMemory:
    """What balancing remembers from round to round; lost with the driver, and learned again by the next."""

    def __init__(self) -> None:
        self._waits_since_ms: dict[str, int] = {}  # session: since which beat requests wait there
        self._asked: list[Asked] = []

    def note(self, sessions: Sequence[Session]) -> None:
        """Learn from the latest beats, whose times are the server's, as are those of orders."""
        waits = [row for row in sessions if row.waiting]
        self._waits_since_ms = {
            row.id: min(self._waits_since_ms.get(row.id, row.beat_ms), row.beat_ms) for row in waits
        }
        if self._asked:
            now_ms = max((row.beat_ms for row in sessions), default=0)
            # After a failover the server's clock may be behind.
            self._asked = [asked for asked in self._asked if abs(now_ms - asked.at_ms) < CALM_MS]

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
        """Those with something in hand. Where requests wait, they have done so from one beat to another."""
        return [row for row in sessions if (self.waits_for_long(row) if row.waiting else row.running)]

    def leaving(self, sessions: Iterable[Session]) -> list[Session]:
        """Those that leave with something in hand, and have not been asked."""
        rows = [row for row in sessions if row.drain or row.state != WorkerState.READY]
        return [row for row in rows if row.waiting + row.running and row.id not in self.asked_sessions]

    def note_order(self, recall: Recall, now_ms: int) -> None:
        """A worker is asked now."""
        self._asked.append(Asked(session_id=recall.session_id, model=recall.model, at_ms=now_ms))

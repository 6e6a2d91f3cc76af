"""Which workers should give back what they have not begun, as others would end it clearly sooner. Pure.

What goes to a worker's window goes there on an estimate: a worker may turn out slow or short of memory, or be asked to
drain, while others run dry. Only then is work moved, no more than these others can run at once, and calmly: an order
needs a queue that lasts, no model has a second one until the first can have shown, and what has moved then runs.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

import msgspec

from broker.records import Session
from driver.snapshot import WorkerView

HOLD_MS = 900  # so long requests must wait at a worker: a second beat says so, too
CALM_MS = 3000  # between two orders for a model; so long who was asked gets nothing new
MOVE_S = 1.0  # until the worker's next beat, which brings it the order
GAIN = 1.1  # so many times longer the present worker must take


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: this worker gives back so many requests that it has not begun."""

    session_id: str
    worker: str
    count: int


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

    def note_order(self, recall: Recall, model: str, now_ms: int) -> None:
        """A worker is asked now."""
        self._asked.append(Asked(session_id=recall.session_id, model=model, at_ms=now_ms))


class _Place:
    """A worker that could run requests at once."""

    __slots__ = ("free", "free_tokens", "request_s_per_token")

    def __init__(self, view: WorkerView) -> None:
        self.free = view.idle_slots
        self.free_tokens = float(view.free_tokens)
        self.request_s_per_token = view.slots / view.speed

    def fill(self, tokens: float) -> None:
        """Count a request as there."""
        self.free -= 1
        self.free_tokens -= tokens


class _Queue:
    """What waits at a worker, while a round takes from its end."""

    __slots__ = ("left", "tokens_each", "view")

    def __init__(self, view: WorkerView) -> None:
        self.view = view
        self.left = min(view.waiting, view.in_hand)
        self.tokens_each = max(view.tokens_in_hand / max(view.in_hand, 1), 1.0)

    @property
    def end_s(self) -> float:
        """When the last that waits will be done here: all before it leave slots one by one, then it runs."""
        return (self.left + self.view.slots) * self.tokens_each / self.view.speed

    @property
    def urgency(self) -> tuple[bool, float, str]:
        """The lowest is helped first: who leaves, then who takes longest; the name decides between equals."""
        return (not self.view.leaving, -self.end_s, self.view.worker)

    def gains_at(self, place: _Place) -> bool:
        """Whether the last that waits would end clearly sooner there. Who leaves should not be waited for."""
        there_s = self.tokens_each * place.request_s_per_token
        return self.view.leaving or self.end_s > GAIN * there_s + MOVE_S


def recalls(holders: Iterable[WorkerView], idle: Iterable[WorkerView]) -> tuple[Recall, ...]:
    """What workers of one model give back to those that have nothing to do for it. `holders` have requests waiting."""
    places = sorted((_Place(view) for view in idle if _runs_at_once(view)), key=lambda place: place.request_s_per_token)
    queues = [_Queue(view) for view in holders if not view.isolated and min(view.waiting, view.in_hand) > 0]
    waiting = {queue.view.session_id: queue.left for queue in queues}
    _take(queues, places)
    return tuple(
        Recall(session_id=queue.view.session_id, worker=queue.view.worker, count=count)
        for queue in queues
        if (count := waiting[queue.view.session_id] - queue.left)
    )


def _take(queues: Sequence[_Queue], places: Sequence[_Place]) -> None:
    """Take the last of whoever is worst off to the fastest that has room, as long as anybody gains."""
    line = [(queue.urgency, queue) for queue in queues]
    heapify(line)
    fastest = iter(places)
    place = next(fastest, None)
    while line and place is not None:
        queue = line[0][1]
        if place.free <= 0 or place.free_tokens < queue.tokens_each:
            place = next(fastest, None)
        elif not queue.gains_at(place):
            heappop(line)
        else:
            place.fill(queue.tokens_each)
            queue.left -= 1
            if queue.left:
                heapreplace(line, (queue.urgency, queue))
            else:
                heappop(line)


def _runs_at_once(view: WorkerView) -> bool:
    return view.has_room and view.idle_slots > 0 and not view.waiting and not view.leaving

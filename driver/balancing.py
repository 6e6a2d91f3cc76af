"""Which workers should give back what they hold, as others would end it clearly sooner. Pure.

Work goes to a worker on an estimate: it may turn out slow or short of memory, or be asked to drain, while others run
dry. Only then is work moved, no more than these others can run at once, and calmly: first what has not begun; what runs
only from one that is much slower than those which were seen at work. When an order was given is in `balance_memory`.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

from driver.snapshot import Recall, WorkerView

MOVE_S = 1.0  # until the worker's next beat, which brings it the order
GAIN = 1.1  # so many times longer the present worker must take
BEGUN_GAIN = 2.0  # the same for what has begun: its tokens so far must be read again
REST = 0.5  # of what a request takes in all is left when it runs, on average


class _Place:
    """A worker that could run requests at once."""

    __slots__ = ("free", "free_tokens", "is_proven", "request_s_per_token")

    def __init__(self, view: WorkerView) -> None:
        self.is_proven = view.is_proven
        self.free = view.idle_slots
        self.free_tokens = float(view.free_tokens)
        self.request_s_per_token = view.slots / view.speed

    def fill(self, tokens: float) -> None:
        """Count a request as there."""
        self.free -= 1
        self.free_tokens -= tokens


class _Holder:
    """What a worker has in hand, while a round takes from its end: first what waits, then what runs."""

    __slots__ = ("_s_per_token", "running", "tokens_each", "view", "waiting")

    def __init__(self, view: WorkerView) -> None:
        self.view = view
        self.waiting = min(view.waiting, view.in_hand)
        self.running = min(view.running, view.in_hand - self.waiting)
        self.tokens_each = max(view.tokens_in_hand / max(view.in_hand, 1), 1.0)
        self._s_per_token = 1 / view.pace if view.pace else view.slots / view.speed

    @property
    def count(self) -> int:
        """Requests that may be taken."""
        return self.waiting + self.running

    @property
    def end_s(self) -> float:
        """When the last will be done here. What waits begins as all before it end one by one."""
        own_s = self.tokens_each * self._s_per_token
        if not self.waiting:
            return REST * own_s
        # Where requests wait, no more run than fit, be it for slots or for memory.
        fit = self.view.running or self.view.slots
        return (self.waiting + fit) / fit * own_s

    @property
    def urgency(self) -> tuple[float, str]:
        """The lowest is helped first, who takes longest; the name decides between equals."""
        return (-self.end_s, self.view.worker)

    def gains_at(self, place: _Place) -> bool:
        """Whether the last would end clearly sooner there."""
        there_s = self.tokens_each * place.request_s_per_token
        if self.waiting:
            return self.end_s > GAIN * there_s + MOVE_S
        # Only what was measured at work is compared: at a start, and in less company, each looks faster.
        return self.view.pace > 0 and place.is_proven and self.end_s > BEGUN_GAIN * REST * there_s + MOVE_S

    def take(self) -> None:
        """The last goes."""
        if self.waiting:
            self.waiting -= 1
        else:
            self.running -= 1


def left_behind(holders: Iterable[WorkerView], able: Iterable[WorkerView]) -> tuple[Recall, ...]:
    """What those who leave give back to be run by others, though these be busy: all that they have not begun.

    What runs, too, where others are much faster.
    """
    paces: dict[str, float] = {}  # model: of one request where it goes fastest
    for view in able:
        if not view.isolated:
            paces[view.model] = max(paces.get(view.model, 0.0), view.speed / view.slots if view.is_proven else 0.0)
    return tuple(
        _recall(holder.view, holder.waiting + (holder.running if is_slow else 0), begun=is_slow)
        for holder in map(_Holder, holders)
        if holder.view.leaving and not holder.view.isolated and holder.view.model in paces
        for is_slow in [0 < BEGUN_GAIN * holder.view.pace < paces[holder.view.model]]
        if holder.waiting or is_slow
    )


def recalls(holders: Iterable[WorkerView], idle: Iterable[WorkerView]) -> tuple[Recall, ...]:
    """What workers of one model give back to those that have nothing to do for it."""
    # Of equals those that were seen at work come last: only to them goes what runs.
    places = sorted(
        (_Place(view) for view in idle if _runs_at_once(view)),
        key=lambda place: (place.request_s_per_token, place.is_proven, place.free, place.free_tokens),
    )
    lines = [_Holder(view) for view in holders if not view.isolated]
    before = [(line, line.waiting, line.running) for line in lines]
    _take([line for line in lines if line.waiting], places)
    _take([line for line in lines if not line.waiting and line.running], [place for place in places if place.is_proven])
    return tuple(
        _recall(line.view, waiting + running - line.count, begun=line.running < running)
        for line, waiting, running in before
        if line.count < waiting + running
    )


def _recall(view: WorkerView, count: int, *, begun: bool) -> Recall:
    return Recall(session_id=view.session_id, worker=view.worker, model=view.model, count=count, begun=begun)


def _take(holders: Sequence[_Holder], places: Sequence[_Place]) -> None:
    """Take the last of whoever is worst off to the fastest that has room, as long as anybody gains.

    Either all have requests waiting, and only these are taken, or none has.
    """
    line = [(holder.urgency, holder) for holder in holders]
    heapify(line)
    fastest = iter(places)
    place = next(fastest, None)
    while line and place is not None:
        holder = line[0][1]
        if place.free <= 0 or place.free_tokens < holder.tokens_each:
            place = next(fastest, None)
        elif not holder.gains_at(place):
            heappop(line)
        else:
            place.fill(holder.tokens_each)
            is_waiting = holder.waiting > 0
            holder.take()
            if holder.waiting or (holder.running and not is_waiting):
                heapreplace(line, (holder.urgency, holder))
            else:
                heappop(line)


def _runs_at_once(view: WorkerView) -> bool:
    return view.has_room and view.idle_slots > 0 and not view.waiting and not view.leaving

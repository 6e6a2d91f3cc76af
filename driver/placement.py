"""Which worker gets the next batch, and how large it may be. Pure.

First comes a worker on which it runs at once, then the one that will have done soonest what it has, by its measured
speed. A worker that has all it can run gets more only when half of its window is empty, or part of it has been for
`max_batch_delay`: so a lone request goes out at once while a GPU is free, and fills a batch while none is. When less
waits than the workers can run together the end is near: then windows stay empty, and each worker gets a part by its
speed. One on which a long request would outlast everything else gets none even earlier. So all finish together.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import ceil, inf
from typing import TypeAlias

import msgspec

from driver.batching import Batch
from driver.snapshot import WorkerView

PREFIXES = 4096  # remembered
WORKERS_OF_PREFIX = 8
GRACE = 1.5  # by simulation: with less, slow workers idle too early; with more, all wait for them at the end

Rank: TypeAlias = tuple[bool, float, int, int, str]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a model: requests, their probable tokens, and what one of them takes if it is long."""

    requests: float
    tokens: float
    longest: float = 1.0


class Memory:
    """What placement remembers from round to round; lost with the driver, and learned again by the next."""

    def __init__(self) -> None:
        self.room_since_s: dict[str, float] = {}  # session: since when its window has had some room
        self._readers: OrderedDict[int, deque[str]] = OrderedDict()

    def note_prefix(self, prefix: int, session_id: str) -> None:
        """A worker reads prompts that begin so."""
        readers = self._readers.setdefault(prefix, deque(maxlen=WORKERS_OF_PREFIX))
        self._readers.move_to_end(prefix)
        if session_id not in readers:
            readers.append(session_id)
        if len(self._readers) > PREFIXES:
            self._readers.popitem(last=False)

    def readers(self, prefix: int) -> Iterable[str]:
        """Sessions that have read such a beginning, the latest first."""
        return reversed(self._readers.get(prefix, ()))


class Place:
    """A worker while a round fills it."""

    __slots__ = ("_tokens", "free", "free_batches", "free_tokens", "idle_slots", "in_hand", "view")

    def __init__(self, view: WorkerView, most: int, idle_slots: int) -> None:
        self.view = view
        self.free = most
        self.idle_slots = idle_slots
        self.free_tokens = view.free_tokens
        self.free_batches = view.free_batches
        self.in_hand = view.in_hand
        self._tokens = view.tokens_in_hand

    @property
    def is_open(self) -> bool:
        """Whether one more batch fits."""
        return self.free > 0 and self.free_batches > 0 and self.free_tokens > 0

    @property
    def rank(self) -> Rank:
        """The lowest is the best; the name decides between equals, so that a snapshot has one decision."""
        busy_s = self._tokens / self.view.speed
        return (self.idle_slots <= 0, busy_s, -self.free, -self.free_tokens, self.view.worker)

    def fill(self, batch: Batch) -> None:
        """Count a batch as in hand."""
        requests, tokens = len(batch.requests), batch.tokens
        self.free -= requests
        self.idle_slots -= requests
        self.in_hand += requests
        self.free_tokens -= tokens
        self.free_batches -= 1
        self._tokens += tokens


class Room:
    """The room of all workers in one round. The best of thousands is found in a heap, not by looking at each."""

    def __init__(
        self,
        workers: Iterable[WorkerView],
        demand: Mapping[str, Demand],
        memory: Memory,
        *,
        now_s: float,
        max_batch_delay_s: float = 0.0,
    ) -> None:
        """`demand` is what waits for each model."""
        self._memory = memory
        self._now_s = now_s
        self._max_batch_delay_s = max_batch_delay_s
        self._places: dict[str, Place] = {}
        self._heaps: dict[str, list[tuple[Rank, Place]]] = {}
        by_model: dict[str, list[WorkerView]] = {}
        for worker in workers:
            by_model.setdefault(worker.model, []).append(worker)
        for model, views in by_model.items():
            self._open(model, views, demand.get(model, Demand(requests=0, tokens=0)))
        live = {worker.session_id for views in by_model.values() for worker in views}
        memory.room_since_s = {key: at for key, at in memory.room_since_s.items() if key in live}

    def choose(self, model: str, prefix: int = 0) -> Place | None:
        """The best worker for a batch of this model ("" for any); None when none has room."""
        best = self._best(model) if model else min(filter(None, map(self._best, self._heaps)), default=None)
        if best is None:
            return None
        return (self._reader(model, prefix, best[1]) if prefix else None) or best[1]

    def fill(self, place: Place, batch: Batch) -> None:
        """Give a batch to a worker."""
        place.fill(batch)
        self._memory.room_since_s.pop(place.view.session_id, None)
        if prefix := batch.requests[0].prefix:
            self._memory.note_prefix(prefix, place.view.session_id)
        if place.is_open:
            heappush(self._heaps[place.view.model], (place.rank, place))

    def _open(self, model: str, views: list[WorkerView], demand: Demand) -> None:
        quotas = finishing_quotas(views, demand)
        heap = self._heaps.setdefault(model, [])
        for view in views:
            quota = quotas[view.session_id]
            most = self._window_room(view) if quota is None else min(view.idle_slots, quota)
            if most > 0 and view.has_room:
                place = self._places[view.session_id] = Place(view, most, view.idle_slots)
                heap.append((place.rank, place))
        heap.sort(key=lambda entry: entry[0])

    def _window_room(self, view: WorkerView) -> int:
        """How many requests a worker may get while more waits than all can run."""
        if view.idle_slots > 0 or view.free_slots <= 0:
            return view.free_slots
        since_s = self._memory.room_since_s.setdefault(view.session_id, self._now_s)
        enough = 2 * view.free_slots >= view.window
        return view.free_slots if enough or self._now_s - since_s >= self._max_batch_delay_s else 0

    def _best(self, model: str) -> tuple[Rank, Place] | None:
        heap = self._heaps.get(model, [])
        while heap and not (heap[0][1].is_open and heap[0][0] == heap[0][1].rank):
            heappop(heap)  # it was filled since
        return heap[0] if heap else None

    def _reader(self, model: str, prefix: int, best: Place) -> Place | None:
        """A worker that has read this beginning before, and is hardly busier than the best one."""
        for session_id in self._memory.readers(prefix):
            place = self._places.get(session_id)
            if place is None or not place.is_open or not place.view.serves(model):
                continue
            at_once = place.idle_slots > 0 or best.idle_slots <= 0
            if at_once and place.in_hand <= best.in_hand + max(1, place.view.slots // 4):
                return place
        return None


def finishing_quotas(workers: Iterable[WorkerView], demand: Demand) -> dict[str, int | None]:
    """How many requests more each worker may get so that all finish together; None while that is far away.

    It is far while more requests wait than the workers can run at once. Only those that would be busy with a long
    request for longer than the others with everything get nothing already before that.
    """
    views = list(workers)
    quotas: dict[str, int | None] = {view.session_id: 0 for view in views}
    # Nobody waits for those that take nothing.
    views = [view for view in views if not view.isolated and (view.has_room or view.in_hand)]
    alone_s = {view.session_id: demand.longest * view.slots / view.speed for view in views}
    # Of what is in hand half is done, on average.
    work, speed, end_s = demand.tokens, 0.0, inf
    used: list[WorkerView] = []
    for view in sorted(views, key=lambda view: alone_s[view.session_id]):
        if used and alone_s[view.session_id] > GRACE * end_s + alone_s[used[0].session_id]:
            break
        used.append(view)
        work += view.tokens_in_hand / 2
        speed += view.speed
        end_s = work / speed
    is_far = demand.requests >= sum(view.slots for view in used)
    typical = demand.tokens / demand.requests if demand.requests else 1.0
    for view in used:
        part = 0.0 if is_far else (end_s * view.speed - view.tokens_in_hand / 2) / typical
        quotas[view.session_id] = None if is_far else max(ceil(part - 1e-9), 1)
    return quotas

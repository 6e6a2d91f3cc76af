"""A GPU that decodes many requests at once: each goes slower the more there are, all together go faster."""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import msgspec

from tests.simulate.workload import MAX_TOKENS

HALF = 32  # requests with which each goes half as fast as alone
PREFILL_COST = 0.05  # of a prompt token, in generated tokens
OVERTAKEN_FOR_S = 60.0  # see gpu_worker/engine_loop.py


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a GPU sees it; `batch` is whose message brought it."""

    job: int
    index: int
    prompt_tokens: int
    output_tokens: int
    expected: int
    batch: int
    most_tokens: int = 0  # that it may come to occupy
    priority: int = 0
    attempts: int = 0
    generated: int = 0  # of the output tokens, elsewhere: they are only read

    @property
    def effort(self) -> float:
        """What it costs, in generated tokens."""
        return self.output_tokens - self.generated + self.reading

    @property
    def reading(self) -> float:
        """What it costs until the first new token."""
        return PREFILL_COST * (self.prompt_tokens + self.generated)


class _Running(NamedTuple):
    """A request that decodes; those that end first are the least."""

    end: float
    place: int  # in the order in which they began
    came_s: float
    work: Work


class Gpu:
    """Requests run in `slots`, the others queue; `alone` is the speed of one request, in tokens per second.

    In company of `half` each goes half as fast; with an infinite `half` company costs nothing. A request begins where
    there is a slot, and memory for all that it and those beside it may come to occupy.
    """

    def __init__(self, *, slots: int, alone: float, half: float = HALF, kv_tokens: int = 2**40) -> None:
        self.slots = slots
        self.kv_tokens = kv_tokens
        self.alone = alone
        self._half = half
        self.done_tokens = 0.0  # generated, of all requests, until something last changed
        self.version = 0
        self._at_s = 0.0
        self._progress = 0.0  # of each running request since the beginning of time
        self._running: list[_Running] = []
        self._used_tokens = 0  # that those which run may come to occupy
        self._queue: list[tuple[float, Work]] = []  # with the time at which each came
        self._order = count()

    @property
    def speed(self) -> float:
        """Tokens per second with all slots in use, or as many as there is memory for."""
        usable = min(self.slots, max(self.kv_tokens // MAX_TOKENS, 1))
        return usable * self._rate(usable)

    @property
    def running(self) -> int:
        """Requests that decode."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that queue."""
        return len(self._queue)

    def done_by(self, now_s: float) -> float:
        """Tokens that are generated until now, of all requests."""
        running = len(self._running)
        return self.done_tokens + (running * (now_s - self._at_s) * self._rate(running) if running else 0.0)

    def add(self, work: Work, now_s: float) -> list[Work]:
        """Take a request. Returns what begins: this one, or nothing."""
        self._advance(now_s)
        # A job of a higher priority begins before what has not begun, unless that has waited for long.
        place = len(self._queue)
        while place and self._is_overtaken(self._queue[place - 1], work, now_s):
            place -= 1
        self._queue.insert(place, (now_s, work))
        return self._begin()

    def not_begun(self) -> list[tuple[float, Work]]:
        """What queues, with the time at which it came, in the order in which it will begin."""
        return list(self._queue)

    def begun(self) -> list[tuple[float, Work]]:
        """What decodes, with the time at which it came, in the order in which it began."""
        return [(item.came_s, item.work) for item in sorted(self._running, key=lambda item: item.place)]

    def generated(self, work: Work, now_s: float) -> int:
        """Tokens that a request has so far."""
        left = next((item.end for item in self._running if item.work is work), None)
        if left is None:
            return work.generated
        progress = self._progress + (now_s - self._at_s) * self._rate(len(self._running))
        return work.generated + max(0, int(work.effort - work.reading - max(left - progress, 0.0)))

    def withdraw(self, work: Work, now_s: float) -> list[Work]:
        """Drop a request; returns those that begin in its place."""
        self._advance(now_s)
        self._queue = [item for item in self._queue if item[1] is not work]
        kept = [item for item in self._running if item.work is not work]
        if len(kept) < len(self._running):
            self._used_tokens -= work.most_tokens
            self._running = kept
            heapify(self._running)
        return self._begin()

    def slow_down(self, part: float, now_s: float) -> None:
        """From now on everything goes at this part of the speed."""
        self._advance(now_s)
        self.alone *= part

    def next_end_s(self) -> float | None:
        """When the next request is done, if none comes before."""
        if not self._running:
            return None
        left = self._running[0].end - self._progress
        return self._at_s + max(left, 0.0) / self._rate(len(self._running))

    def finish(self, now_s: float) -> tuple[Work, list[Work]]:
        """The request that is done now, and those that begin in its place."""
        self._advance(now_s)
        done = heappop(self._running).work
        self._used_tokens -= done.most_tokens
        return done, self._begin()

    def crash(self, now_s: float) -> None:
        """Lose everything."""
        self._advance(now_s)
        self._running.clear()
        self._queue.clear()
        self._used_tokens = 0

    def _begin(self) -> list[Work]:
        begun: list[Work] = []
        while self._queue and self._fits(self._queue[0][1]):
            came_s, work = self._queue.pop(0)
            self._used_tokens += work.most_tokens
            heappush(self._running, _Running(self._progress + work.effort, next(self._order), came_s, work))
            begun.append(work)
        return begun

    def _fits(self, work: Work) -> bool:
        has_memory = not self._running or self._used_tokens + work.most_tokens <= self.kv_tokens
        return len(self._running) < self.slots and has_memory

    @staticmethod
    def _is_overtaken(queued: tuple[float, Work], work: Work, now_s: float) -> bool:
        return queued[1].priority < work.priority and now_s - queued[0] < OVERTAKEN_FOR_S

    def _rate(self, running: int) -> float:
        return self.alone / (1 + (running - 1) / (self._half - 1))

    def _advance(self, now_s: float) -> None:
        running = len(self._running)
        if running:
            gained = (now_s - self._at_s) * self._rate(running)
            self._progress += gained
            self.done_tokens += gained * running
        self._at_s = now_s
        self.version += 1

"""A GPU that decodes many requests at once: each goes slower the more there are, all together go faster."""

from collections import deque
from heapq import heappop, heappush
from itertools import count

import msgspec

HALF = 32  # requests with which each goes half as fast as alone
PREFILL_COST = 0.05  # of a prompt token, in generated tokens


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a GPU sees it; `batch` is whose message brought it."""

    job: int
    index: int
    prompt_tokens: int
    output_tokens: int
    expected: int
    batch: int

    @property
    def effort(self) -> float:
        """What it costs, in generated tokens."""
        return self.output_tokens + PREFILL_COST * self.prompt_tokens


class Gpu:
    """Requests run in `slots`, the others queue; `alone` is the speed of one request, in tokens per second.

    In company of `half` each goes half as fast; with an infinite `half` company costs nothing.
    """

    def __init__(self, *, slots: int, alone: float, half: float = HALF) -> None:
        self.slots = slots
        self.alone = alone
        self._half = half
        self.done_tokens = 0.0  # generated, of all requests, until something last changed
        self.version = 0
        self._at_s = 0.0
        self._progress = 0.0  # of each running request since the beginning of time
        self._running: list[tuple[float, int, Work]] = []
        self._queue: deque[Work] = deque()
        self._order = count()

    @property
    def speed(self) -> float:
        """Tokens per second with all slots in use."""
        return self.slots * self._rate(self.slots)

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

    def add(self, work: Work, now_s: float) -> bool:
        """Take a request. True when it runs at once."""
        self._advance(now_s)
        if len(self._running) < self.slots:
            self._start(work)
            return True
        self._queue.append(work)
        return False

    def next_end_s(self) -> float | None:
        """When the next request is done, if none comes before."""
        if not self._running:
            return None
        left = self._running[0][0] - self._progress
        return self._at_s + max(left, 0.0) / self._rate(len(self._running))

    def finish(self, now_s: float) -> tuple[Work, Work | None]:
        """The request that is done now, and the one that begins in its place."""
        self._advance(now_s)
        done = heappop(self._running)[2]
        begun = self._queue.popleft() if self._queue else None
        if begun is not None:
            self._start(begun)
        return done, begun

    def crash(self, now_s: float) -> list[Work]:
        """Lose everything; returns what it had."""
        self._advance(now_s)
        lost = [work for _, _, work in self._running] + list(self._queue)
        self._running.clear()
        self._queue.clear()
        self.version += 1
        return lost

    def _start(self, work: Work) -> None:
        heappush(self._running, (self._progress + work.effort, next(self._order), work))

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

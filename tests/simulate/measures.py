"""What a simulation measures, and what is made of it."""

from collections.abc import Sequence
from statistics import median

import msgspec

from tests.simulate.gpu import PREFILL_COST
from tests.simulate.incidents import Speed
from tests.simulate.workload import SimulatedJob, lengths_of

LARGE_BACKLOG = 100_000


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What one run comes to. Shares are of 1, times in seconds unless they say otherwise."""

    requests: int
    makespan_s: float
    bound_s: float  # all work over all speed: nothing can be faster
    utilisation: float  # until 98 % of the requests were done
    jain: float  # between the jobs that were there from the beginning, while all of them waited
    round_ms: float  # median
    large_round_ms: float  # median while 100,000 requests or more were pending; 0 if never
    slowest_round_ms: float
    batches: int
    wait_s: dict[int, float]  # by priority: from a job's arrival until its first request ran, mean
    done_s: dict[int, float]  # by priority: from a job's arrival until it was done, mean
    orders: int  # to give back what has not begun
    moved: int  # requests that were given back, so often as they were
    moved_again: int  # of these, those that had moved before
    left_s: float  # from being asked to drain until a worker has left, mean; 0 where none has

    @property
    def over_bound(self) -> float:
        """Makespan over its lower bound."""
        return self.makespan_s / self.bound_s


class Measures:
    """Notes what happens, and sums it up."""

    def __init__(self, jobs: Sequence[SimulatedJob], speed: Speed) -> None:
        self._jobs = jobs
        self._speed = speed
        self._left = [job.count for job in jobs]
        self._served = [0.0] * len(jobs)
        self._first_s: list[float | None] = [None] * len(jobs)
        self._last_s = [0.0] * len(jobs)
        self._rounds: list[tuple[float, int]] = []
        self._batches = 0
        self._done = 0
        self._total = sum(job.count for job in jobs)
        self._effort = 0.0
        self._mostly_done: tuple[float, float] | None = None
        self._shares: list[float] | None = None
        self._end: tuple[float, float] = (0.0, 0.0)
        self._orders = 0
        self._moved: list[tuple[int, int]] = []
        self._left_s: list[float] = []

    def note_round(self, now_s: float, took_s: float, pending: int, batches: int, effort: float) -> None:
        self._rounds.append((took_s, pending))
        self._batches += batches
        if self._mostly_done is None and self._done >= 0.98 * self._total:
            self._mostly_done = (now_s, effort)

    def note_start(self, job: int, now_s: float) -> None:
        if self._first_s[job] is None:
            self._first_s[job] = now_s

    def note_end(self, job: int, effort: float, now_s: float) -> None:
        self._done += 1
        self._left[job] -= 1
        self._served[job] += effort
        self._last_s[job] = now_s
        if self._shares is None and 2 * self._left[job] <= self._jobs[job].count and self._jobs[job].at_s == 0:
            # The first of them is half done, and all still wait.
            self._shares = [self._served[place] for place, other in enumerate(self._jobs) if other.at_s == 0]

    def note_order(self) -> None:
        self._orders += 1

    def note_move(self, job: int, index: int) -> None:
        self._moved.append((job, index))

    def note_left(self, after_s: float) -> None:
        self._left_s.append(after_s)

    def finish(self, now_s: float, effort: float) -> None:
        self._end = (now_s, effort)

    def results(self) -> Results:
        took = [item[0] for item in self._rounds]
        large = [item[0] for item in self._rounds if item[1] >= LARGE_BACKLOG]
        work = sum(
            output + PREFILL_COST * prompt
            for number, job in enumerate(self._jobs)
            for prompt, output in lengths_of(number, job)
        )
        mostly_s, effort = self._mostly_done or self._end
        return Results(
            requests=self._total,
            makespan_s=self._end[0],
            bound_s=self._speed.time_for(work),
            utilisation=effort / self._speed.tokens_until(mostly_s),
            jain=jain(self._shares or []),
            round_ms=1000 * median(took),
            large_round_ms=1000 * median(large) if large else 0.0,
            slowest_round_ms=1000 * max(took),
            batches=self._batches,
            wait_s=self._by_priority(
                [(first or 0.0) - job.at_s for first, job in zip(self._first_s, self._jobs, strict=True)]
            ),
            done_s=self._by_priority([last - job.at_s for last, job in zip(self._last_s, self._jobs, strict=True)]),
            orders=self._orders,
            moved=len(self._moved),
            left_s=sum(self._left_s) / max(len(self._left_s), 1),
            moved_again=len(self._moved) - len(set(self._moved)),
        )

    def _by_priority(self, values: Sequence[float]) -> dict[int, float]:
        rows: dict[int, list[float]] = {}
        for job, value in zip(self._jobs, values, strict=True):
            rows.setdefault(job.priority, []).append(value)
        return {priority: sum(row) / len(row) for priority, row in sorted(rows.items(), reverse=True)}


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 1.0

"""Hands out turns among the jobs of one round: who is next, what it was given, and who wants no more. Pure."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

from broker.records import WaitingJob
from driver.fairness import Fairness, job_key
from driver.line import JobKey


class Turns:
    """The turns of one round, class by class."""

    def __init__(
        self, fairness: Fairness, ranked: Sequence[tuple[WaitingJob, int]], models: Iterable[str], now_s: float
    ) -> None:
        """`ranked` are the first jobs with their classes; `models` are those that can be served at all."""
        self._fairness = fairness
        self._models = tuple(models)
        self._now_s = now_s
        self._classes: dict[int, dict[str, list[tuple[JobKey, WaitingJob]]]] = {}
        for job, level in ranked:
            heap = self._classes.setdefault(level, {}).setdefault(job.user, [])
            heap.append((job_key(fairness.jobs(level, job.user), job), job))
        self._levels = sorted(self._classes, reverse=True)
        self._users: list[tuple[float, str]] = []
        self._user_weights = 0.0
        self._job_weights: dict[str, float] = {}
        self._enter_class()

    def next(self) -> WaitingJob | None:
        """Whose turn it is; None when nobody wants any more."""
        return self._jobs[0][1] if self._users else None

    def give(self, tokens: float) -> None:
        """The job whose turn it is was given a batch of so many tokens."""
        level, user = self._levels[0], self._users[0][1]
        users, jobs, job = self._fairness.users(level), self._fairness.jobs(level, user), self._jobs[0][1]
        jobs.charge(job.id, tokens, job.weight, self._job_weights[user])
        users.charge(user, tokens, self._fairness.user_weight(user), self._user_weights)
        self._fairness.served(job, level, self._now_s)
        heapreplace(self._jobs, (job_key(jobs, job), job))
        heapreplace(self._users, (users.tag(user), user))

    def leave(self) -> None:
        """The job whose turn it is wants no more, or can have no more, in this round."""
        heappop(self._jobs)
        if not self._jobs:
            heappop(self._users)
        if not self._users:
            self._levels.pop(0)
            self._enter_class()

    @property
    def _jobs(self) -> list[tuple[JobKey, WaitingJob]]:
        return self._classes[self._levels[0]][self._users[0][1]]

    def _enter_class(self) -> None:
        if not self._levels:
            return
        level = self._levels[0]
        users, queue = self._classes[level], self._fairness.users(level)
        for heap in users.values():
            heapify(heap)
        self._users = [(queue.tag(user), user) for user in users]
        heapify(self._users)
        # All who wait count, not only those that are looked at in this round.
        seen = sum(map(self._fairness.user_weight, users))
        self._user_weights = max(seen, self._fairness.weight_of_users(level, self._models))
        self._job_weights = {
            user: max(sum(job.weight for _, job in heap), self._fairness.weight_of_jobs(level, user, self._models))
            for user, heap in users.items()
        }

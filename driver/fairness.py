"""Whose turn it is: strict priority classes, in a class fair shares of tokens, then the earliest deadline. Pure.

Users share a class equally, or by the weights that the operator gives them; a user's jobs share its part by their own
weights. It is fair queueing: everybody has a tag, the tokens it was given over its weight; the lowest tag is next; and
a newcomer starts at the present virtual time, so that it neither waits behind all that was served before it nor makes
up for it. A job that waits for long without being served rises one class every `ageing_s` seconds, up to the highest
class that waits: there, fair shares bound what it still has to wait.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import zip_longest
from typing import TypeAlias

from broker.records import WaitingJob

# Nobody is ahead of, or behind, its fair share by more tokens (over its weight) than this. What it could not use, as
# no worker served its model, it does not get back later at the cost of everybody else.
MEMORY_TOKENS = 65_536.0
NEWCOMER_TOKENS = 1.0

JobKey: TypeAlias = tuple[float, float, int, str]


class FairQueue:
    """Members that share something by weight."""

    def __init__(self) -> None:
        self._time = 0.0
        self._tags: dict[str, float] = {}
        self._newcomers: set[str] = set()

    def tag(self, name: str) -> float:
        """How much a member had, over its weight; the lowest is next. Of equals, one that had nothing yet is lower."""
        if name not in self._tags:
            self._tags[name] = self._time
            self._newcomers.add(name)
        return self._bounded(name) - (NEWCOMER_TOKENS if name in self._newcomers else 0.0)

    def charge(self, name: str, tokens: float, weight: float, all_weights: float) -> None:
        """A member was given so much, while members of `all_weights` together wanted some."""
        self.tag(name)
        self._newcomers.discard(name)
        self._tags[name] = self._bounded(name) + tokens / weight
        self._time += tokens / all_weights

    def keep(self, names: set[str]) -> bool:
        """Forget who does not wait any more, unless it is ahead of its share. False when nothing is left to know."""
        self._tags = {name: tag for name, tag in self._tags.items() if name in names or tag > self._time}
        self._newcomers &= names
        return bool(names)

    def _bounded(self, name: str) -> float:
        return min(max(self._tags[name], self._time - MEMORY_TOKENS), self._time + MEMORY_TOKENS)


class Fairness:
    """What the order remembers from round to round. It lives in the leading driver's memory only.

    A new leader begins with none of it, which does no harm: all start at one virtual time again, and a job's wait
    counts from when the new leader first saw it.
    """

    def __init__(self, ageing_s: float = 60.0, user_weights: Mapping[str, float] | None = None) -> None:
        self.ageing_s = ageing_s
        self._user_weights = user_weights or {}
        self._users: dict[int, FairQueue] = {}  # by class
        self._jobs: dict[tuple[int, str], FairQueue] = {}  # by class and user
        self._unserved_since_s: dict[str, float] = {}  # by job

    def rank(self, waiting: Iterable[WaitingJob], now_s: float) -> list[tuple[WaitingJob, int]]:
        """Waiting jobs with their classes, in the order in which they would be served one batch each."""
        jobs = list(waiting)
        self._unserved_since_s = {job.id: self._unserved_since_s.get(job.id, now_s) for job in jobs}
        highest = max((job.priority for job in jobs), default=0)
        classes: dict[int, dict[str, list[WaitingJob]]] = {}
        for job in jobs:
            classes.setdefault(self._level(job, highest, now_s), {}).setdefault(job.user, []).append(job)
        self._forget(classes)
        return [(job, level) for level in sorted(classes, reverse=True) for job in self._round(level, classes[level])]

    def user_weight(self, user: str) -> float:
        """A user's weight beside the other users."""
        return self._user_weights.get(user, 1.0)

    def users(self, level: int) -> FairQueue:
        """The users of a class."""
        return self._users.setdefault(level, FairQueue())

    def jobs(self, level: int, user: str) -> FairQueue:
        """A user's jobs of a class."""
        return self._jobs.setdefault((level, user), FairQueue())

    def serve(self, job_id: str, now_s: float) -> None:
        """A job was given something, and waits anew."""
        self._unserved_since_s[job_id] = now_s

    def _level(self, job: WaitingJob, highest: int, now_s: float) -> int:
        risen = int((now_s - self._unserved_since_s[job.id]) / self.ageing_s)
        return min(job.priority + risen, highest)

    def _round(self, level: int, users: dict[str, list[WaitingJob]]) -> list[WaitingJob]:
        """The first job of each user, then the second of each, and so on."""
        ordered: list[list[WaitingJob]] = []
        for user in sorted(users, key=self.users(level).tag):
            queue = self.jobs(level, user)
            ordered.append(sorted(users[user], key=lambda job: job_key(queue, job)))
        if len(ordered) == 1:
            return ordered[0]
        return [job for row in zip_longest(*ordered) for job in row if job is not None]

    def _forget(self, classes: dict[int, dict[str, list[WaitingJob]]]) -> None:
        kept = {level: queue for level, queue in self._users.items() if queue.keep({*classes.get(level, ())})}
        self._users = kept
        self._jobs = {
            (level, user): queue
            for (level, user), queue in self._jobs.items()
            if queue.keep({job.id for job in classes.get(level, {}).get(user, ())})
        }


def job_key(queue: FairQueue, job: WaitingJob) -> JobKey:
    """The order among jobs of a user: its share so far, the earliest deadline, age; the id, so that nothing is open."""
    return (queue.tag(job.id), job.deadline_ms or float("inf"), job.created_ms, job.id)


class Turns:
    """Hands out turns among jobs in one round: who is next, what it was given, and who wants no more."""

    def __init__(self, fairness: Fairness, ranked: Sequence[tuple[WaitingJob, int]], now_s: float) -> None:
        """`ranked` are jobs with their classes."""
        self._fairness = fairness
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
        self._fairness.serve(job.id, self._now_s)
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
        users, queue = self._classes[self._levels[0]], self._fairness.users(self._levels[0])
        for heap in users.values():
            heapify(heap)
        self._users = [(queue.tag(user), user) for user in users]
        heapify(self._users)
        self._user_weights = sum(map(self._fairness.user_weight, users))
        self._job_weights = {user: sum(job.weight for _, job in heap) for user, heap in users.items()}

"""Whose turn it is: strict priority classes, in a class fair shares of tokens, then the earliest deadline. Pure.

Users share a class equally, or by the weights that the operator gives them; a user's jobs share its part by their own
weights (`fair_queue`). A job that waits for long without being served rises one priority every `ageing_s` seconds, and
counts in the highest class of those that wait which it has reached: there, fair shares bound what it has still to wait.

Nothing here looks at all that wait: a round takes from the front of the order as many as it can use.
"""

from collections.abc import Iterable, Iterator, Mapping

from broker.records import WaitingJob
from driver.fair_queue import FairQueue
from driver.interleaving import in_turn, merged, names, unique
from driver.line import JobKey, Line
from driver.ranking import Ranking


class Fairness:
    """Who waits, and what the order remembers from round to round. It lives in the leading driver's memory only.

    A new leader begins with none of it, which does no harm: all start at one virtual time again, and a job's wait
    counts from when the new leader first saw it.
    """

    def __init__(self, ageing_s: float = 60.0, user_weights: Mapping[str, float] | None = None) -> None:
        self.ageing_s = ageing_s
        self._user_weights = user_weights or {}
        self._waiting: dict[str, WaitingJob] = {}
        self._lines: dict[int, dict[str, Line]] = {}  # by priority and model
        self._users: dict[int, FairQueue] = {}  # by class
        self._jobs: dict[tuple[int, str], FairQueue] = {}  # by class and user
        self._risen: dict[str, set[int]] = {}  # job: classes above its own in which it counts
        self._served: list[WaitingJob] = []  # in the last round
        self._deadlines: Ranking[int] = Ranking()

    def enter(self, job: WaitingJob, now_s: float) -> None:
        """A job begins to wait."""
        if job.id in self._waiting:
            return
        self._waiting[job.id] = job
        lines = self._lines.setdefault(job.priority, {})
        line = lines.get(job.model)
        if line is None:
            line = lines[job.model] = Line()
        self._enter_class(job, job.priority)
        key = job_key(self.jobs(job.priority, job.user), job)
        line.add(job, key, self.user_weight(job.user), now_s)
        line.turns.put(job.user, self.users(job.priority).tag(job.user))
        if job.deadline_ms:
            self._deadlines.put(job.id, job.deadline_ms)

    def leave(self, job_id: str) -> None:
        """A job waits no more, if it did."""
        job = self._waiting.pop(job_id, None)
        if job is None:
            return
        lines = self._lines[job.priority]
        lines[job.model].remove(job, self.user_weight(job.user))
        if not lines[job.model].size:
            del lines[job.model]
        if not lines:
            del self._lines[job.priority]
        self._fall_back(job)
        self._leave_class(job, job.priority)
        self._deadlines.drop(job_id)

    def waiting(self) -> Iterable[str]:
        """The ids of all jobs that wait."""
        return self._waiting.keys()

    def count(self, models: Iterable[str]) -> int:
        """How many jobs wait for one of these models."""
        return sum(lines[model].size for lines in self._lines.values() for model in models if model in lines)

    def in_order(self, models: Iterable[str], now_s: float) -> Iterator[tuple[WaitingJob, int]]:
        """The jobs that wait for one of these models, with their classes, as they would be served one batch each.

        They are found one by one: nothing may be changed before the last that is wanted was taken.
        """
        for job in self._served:
            self._fall_back(job)
        self._served.clear()
        models = tuple(models)
        levels = sorted(self._lines, reverse=True)
        seen: set[str] = set()
        for place, level in enumerate(levels):
            own = self._own_jobs([self._lines[level][model] for model in models if model in self._lines[level]])
            aged = self._aged_jobs(level, levels[place + 1 :], models, now_s)
            for job_id in in_turn(iter((own, aged))):
                if job_id not in seen:
                    seen.add(job_id)
                    yield self._at_level(self._waiting[job_id], level)

    def by_deadline(self, now_s: float) -> Iterator[tuple[WaitingJob, int]]:
        """The jobs that have a deadline, with their classes, the earliest first."""
        levels = sorted(self._lines)
        for _, job_id in self._deadlines.in_order():
            job = self._waiting[job_id]
            since_s = self._line(job).users[job.user].since_s[job_id]
            reached = job.priority + int((now_s - since_s) / self.ageing_s)
            # After a failover the server's clock may be behind: then nobody has waited, and nobody fallen.
            yield job, max((level for level in levels if job.priority <= level <= reached), default=job.priority)

    def user_weight(self, user: str) -> float:
        """A user's weight beside the other users."""
        return self._user_weights.get(user, 1.0)

    def weight_of_users(self, level: int, models: Iterable[str]) -> float:
        """Of all users together that have jobs of this class for one of these models."""
        lines = self._lines.get(level, {})
        return sum(lines[model].weight for model in models if model in lines)

    def weight_of_jobs(self, level: int, user: str, models: Iterable[str]) -> float:
        """Of all the user's jobs together, of this class and for one of these models."""
        lines = self._lines.get(level, {})
        return sum(lines[model].users[user].weight for model in models if model in lines and user in lines[model].users)

    def users(self, level: int) -> FairQueue:
        """The users of a class."""
        queue = self._users.get(level)
        if queue is None:
            queue = self._users[level] = FairQueue()
        return queue

    def jobs(self, level: int, user: str) -> FairQueue:
        """A user's jobs of a class."""
        queue = self._jobs.get((level, user))
        if queue is None:
            queue = self._jobs[level, user] = FairQueue()
        return queue

    def served(self, job: WaitingJob, level: int, now_s: float) -> None:
        """A job was given something in this class, and waits anew."""
        for line in self._lines.get(level, {}).values():
            if job.user in line.users:
                line.turns.put(job.user, self.users(level).tag(job.user))
        if job.id in self._waiting:
            line = self._line(job)
            line.serve(job, now_s)
            line.users[job.user].turns.put(job.id, job_key(self.jobs(job.priority, job.user), job))
            self._served.append(job)

    def _own_jobs(self, lines: list[Line]) -> Iterator[str]:
        """Jobs whose own class this is: the first of each user, then the second of each, and so on."""
        users = unique(user for _, user in merged([line.turns.in_order() for line in lines]))
        return in_turn(names(merged([line.turns_of(user) for line in lines])) for user in users)

    def _aged_jobs(self, level: int, lower: Iterable[int], models: tuple[str, ...], now_s: float) -> Iterator[str]:
        """Jobs that have risen to this class: of each user the one that waits longest, and so on."""
        lines = [
            (self._lines[own][model], now_s - (level - own) * self.ageing_s)
            for own in lower
            for model in models
            if model in self._lines[own]
        ]
        users = unique(user for _, user in merged([line.waiting_users(until_s) for line, until_s in lines]))
        return in_turn(names(merged([line.waiting_jobs(user, until_s) for line, until_s in lines])) for user in users)

    def _at_level(self, job: WaitingJob, level: int) -> tuple[WaitingJob, int]:
        if level != job.priority and level not in self._risen.setdefault(job.id, set()):
            self._risen[job.id].add(level)
            self._enter_class(job, level)
        return job, level

    def _fall_back(self, job: WaitingJob) -> None:
        for level in self._risen.pop(job.id, ()):
            self._leave_class(job, level)

    def _enter_class(self, job: WaitingJob, level: int) -> None:
        self.users(level).enter(job.user)
        self.jobs(level, job.user).enter(job.id)

    def _leave_class(self, job: WaitingJob, level: int) -> None:
        users, jobs = self.users(level), self.jobs(level, job.user)
        users.leave(job.user)
        jobs.leave(job.id)
        if not users:
            del self._users[level]
        if not jobs:
            del self._jobs[level, job.user]

    def _line(self, job: WaitingJob) -> Line:
        return self._lines[job.priority][job.model]


def job_key(queue: FairQueue, job: WaitingJob) -> JobKey:
    """The order among jobs of a user: its share so far, the earliest deadline, age; the id, so that nothing is open."""
    return (queue.tag(job.id), job.deadline_ms or float("inf"), job.created_ms, job.id)

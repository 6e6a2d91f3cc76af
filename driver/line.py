"""The waiting jobs of one priority and one model, by users: whose turn it is, and who waits longest. Pure.

Both orders can be read from the front, however many wait.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from typing import TypeAlias

from broker.records import WaitingJob
from driver.ranking import Ranking

JobKey: TypeAlias = tuple[float, float, int, str]


class UserJobs:
    """A user's jobs in a line."""

    def __init__(self) -> None:
        self.turns: Ranking[JobKey] = Ranking()
        self.since_s: OrderedDict[str, float] = OrderedDict()  # when each was served last or came; the longest first
        self.weight = 0.0  # of all together


class Line:
    """Jobs that differ in nothing that decides before it is asked whose turn it is."""

    def __init__(self) -> None:
        self.users: dict[str, UserJobs] = {}
        self.turns: Ranking[float] = Ranking()  # of users
        self.weight = 0.0  # of all users together
        self.size = 0
        self._waits: Ranking[float] = Ranking()  # users, by their job that waits longest

    def add(self, job: WaitingJob, key: JobKey, user_weight: float, now_s: float) -> None:
        """A job begins to wait."""
        if job.user not in self.users:
            self.users[job.user] = UserJobs()
            self.weight += user_weight
        jobs = self.users[job.user]
        jobs.turns.put(job.id, key)
        jobs.since_s[job.id] = now_s
        jobs.weight += job.weight
        self.size += 1
        self._note_wait(job.user)

    def remove(self, job: WaitingJob, user_weight: float) -> None:
        """A job waits no more."""
        jobs = self.users[job.user]
        jobs.turns.drop(job.id)
        del jobs.since_s[job.id]
        jobs.weight -= job.weight
        self.size -= 1
        if jobs.since_s:
            self._note_wait(job.user)
            return
        del self.users[job.user]
        self.turns.drop(job.user)
        self._waits.drop(job.user)
        self.weight -= user_weight

    def serve(self, job: WaitingJob, now_s: float) -> None:
        """A job was given something, and waits anew."""
        since_s = self.users[job.user].since_s
        since_s[job.id] = now_s
        since_s.move_to_end(job.id)
        self._note_wait(job.user)

    def turns_of(self, user: str) -> Iterator[tuple[JobKey, str]]:
        """Ids of a user's jobs with their keys, the next one first."""
        return self.users[user].turns.in_order() if user in self.users else iter(())

    def waiting_users(self, until_s: float) -> Iterator[tuple[float, str]]:
        """Users of whom a job waits since that time or longer, the longest first."""
        return takewhile(lambda item: item[0] <= until_s, self._waits.in_order())

    def waiting_jobs(self, user: str, until_s: float) -> Iterator[tuple[float, str]]:
        """A user's jobs that wait since that time or longer, the longest first."""
        jobs = self.users[user].since_s.items() if user in self.users else ()
        return takewhile(lambda item: item[0] <= until_s, ((since_s, job_id) for job_id, since_s in jobs))

    def _note_wait(self, user: str) -> None:
        self._waits.put(user, next(iter(self.users[user].since_s.values())))

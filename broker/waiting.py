"""Which jobs have pending requests, followed change by change: a round must not cost more the more jobs wait.

The ledger notes in a stream when a job begins to wait and when it does not any more. Whoever reads for the first time,
or has missed changes that the stream has forgotten, reads all that wait.
"""

from collections.abc import Iterable, Mapping

from broker.connection import RedisClient, broker_errors
from broker.keys import Keys
from broker.queries import Queries
from broker.records import WaitingChanges
from broker.results import Entries

MOST_CHANGES = 10_000  # read at once; with more, reading all is cheaper


class WaitingJobs:
    """Follows the jobs that wait; what it remembers it reads anew when it is lost with its driver."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, queries: Queries) -> None:
        self._redis = client
        self._keys = keys
        self._url = url
        self._queries = queries
        self._position = b""  # the last change that was seen
        self._ids: set[str] = set()

    def __len__(self) -> int:
        """How many jobs waited at the last reading."""
        return len(self._ids)

    def read(self) -> WaitingChanges:
        """What has changed since the last call; at the first, all jobs that wait.

        Raises:
            BrokerUnavailableError: Redis does not answer; the next call begins where this one did.
        """
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=True)
            self.queue(pipeline)
            count, entries = pipeline.execute()
        return self.take(count, entries)

    def queue(self, pipeline: RedisClient) -> None:
        """Ask, together with others, for what `take` needs: two replies. The two commands must stay together."""
        pipeline.zcard(self._keys.waiting)
        pipeline.xrange(self._keys.waiting_changes, self._position or "-", count=MOST_CHANGES)

    def take(self, count: int, entries: Entries) -> WaitingChanges:
        """As `read`, given how many wait and the changes that there are."""
        if self._position and 0 < len(entries) < MOST_CHANGES and entries[0][0] == self._position:
            joined, left = _sum(fields for _, fields in entries[1:])
            # What is counted otherwise than it was noted was changed by somebody who takes no notes.
            if len(self._ids) + len(joined.keys() - self._ids) - len(left & self._ids) == count:
                return self._apply(entries[-1][0], list(joined), left)
        return self._read_all()

    def _read_all(self) -> WaitingChanges:
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.xrevrange(self._keys.waiting_changes, count=1)
            pipeline.zrange(self._keys.waiting, 0, -1)
            newest, members = pipeline.execute()
        ids = dict.fromkeys(member.decode().partition(" ")[0] for member in members)
        joined = [job_id for job_id in ids if job_id not in self._ids]
        return self._apply(newest[0][0] if newest else b"", joined, self._ids - ids.keys())

    def _apply(self, position: bytes, joined: list[str], left: set[str]) -> WaitingChanges:
        jobs = self._queries.described(joined) if joined else []
        self._position = position
        self._ids.update(joined)
        self._ids -= left
        return WaitingChanges(joined=tuple(jobs), left=frozenset(left))


def _sum(entries: Iterable[Mapping[bytes, bytes]]) -> tuple[dict[str, None], set[str]]:
    """What many changes come to: the last one of each job counts. Those who joined are in their order."""
    joined: dict[str, None] = {}
    left: set[str] = set()
    for entry in entries:
        for name, waits in entry.items():
            job_id = name.decode()
            joined.pop(job_id, None)
            left.discard(job_id)
            if waits == b"1":
                joined[job_id] = None
            else:
                left.add(job_id)
    return joined, left

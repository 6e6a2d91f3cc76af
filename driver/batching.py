"""Which requests of a job travel together: the next one, and those behind it that are most like it. Pure.

Alike are prompts that begin in the same way, as the worker then reads that beginning once, and then texts of similar
length. The next in line always goes, so that nobody is passed over for ever. Once the end of a job is in sight those
that may write most go first: what starts last should be over soon. Sampling parameters part nobody: every engine takes
each request with its own.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from broker.records import PendingRequest
from driver.estimates import expected_tokens
from driver.snapshot import JobView

LOOKAHEAD = 128  # requests among which likeness is looked for


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that travel together, and the tokens that each is expected to occupy."""

    requests: tuple[PendingRequest, ...]
    expected: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Expected tokens of all requests."""
        return sum(self.expected)


class _Item(NamedTuple):
    """A request in line, and what it has in common with others: how its prompt begins, and its rough length."""

    request: PendingRequest
    expected: int
    kind: tuple[int, int]


class Front:
    """The visible part of a job's queue in one round, without its suspects; batches are taken from it."""

    def __init__(self, job: JobView) -> None:
        waiting = [request for request in job.pending if request.attempts == 0]
        if len(job.pending) >= job.backlog:
            waiting.sort(key=lambda request: -_text_size(request))
        self._mean_output = job.mean_output
        self._rest: Iterator[PendingRequest] = iter(waiting)
        self._line: list[_Item] = []
        self._fill(1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing visible is left."""
        return not self._line

    @property
    def prefix(self) -> int:
        """How the next request's prompt begins; see `PendingRequest`."""
        return self._line[0].request.prefix if self._line else 0

    def take(self, most_requests: int, most_tokens: int) -> Batch:
        """A batch within a budget; the next request goes even if it alone is above the token budget."""
        self._fill(LOOKAHEAD)
        taken: list[int] = []
        tokens = 0
        for place in self._alike_first(most_requests):
            tokens += self._line[place].expected
            if taken and tokens > most_tokens:
                break
            taken.append(place)
        items = [self._line[place] for place in taken]
        for place in sorted(taken, reverse=True):
            del self._line[place]
        self._fill(1)
        return Batch(requests=tuple(item.request for item in items), expected=tuple(item.expected for item in items))

    def _alike_first(self, count: int) -> list[int]:
        """So many places in the line: the first, and those most like it; the earlier of equals."""
        prefix, size = kind = self._line[0].kind
        alike = list(islice((place for place, item in enumerate(self._line) if item.kind == kind), count))
        if len(alike) < count:
            others = [place for place, item in enumerate(self._line) if item.kind != kind]
            others.sort(key=lambda at: (self._line[at].kind[0] != prefix, abs(self._line[at].kind[1] - size)))
            alike += others
        return alike[:count]

    def _fill(self, size: int) -> None:
        for request in islice(self._rest, max(size - len(self._line), 0)):
            expected = expected_tokens(request, self._mean_output)
            self._line.append(_Item(request, expected, (request.prefix, expected.bit_length())))


def _text_size(request: PendingRequest) -> int:
    """Roughly how long the request's text may become. Its prompt is read so much faster that it hardly counts."""
    return (request.cost - request.prompt_tokens).bit_length()

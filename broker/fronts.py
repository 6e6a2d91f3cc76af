"""The front of a job, its first pending requests and where it stands, from what Redis says of it. Pure."""

from itertools import repeat

from broker.costs import read_costs
from broker.records import JobFront, PendingRequest

COUNTERS = ("done", "failed", "shared", "cached", "completion_tokens")  # of a job's record


def pending(
    indices: list[bytes], costs: list[bytes | None], attempts: list[bytes | None]
) -> tuple[PendingRequest, ...]:
    """Pending requests, with the costs of each; `attempts` are those of each, or of none."""
    tries = iter(attempts) if len(attempts) == len(indices) else repeat(None)
    rows = zip(indices, costs, tries, strict=False)  # one None for a job that has nothing pending
    return tuple(_pending_request(int(index), cost or b"0", int(count or 0)) for index, cost, count in rows)


def front(pending: tuple[PendingRequest, ...], backlog: int, counters: list[bytes | None]) -> JobFront:
    """A job's front; `backlog` is how many are pending in all, `counters` are its `COUNTERS`."""
    answered, tokens = own_answers(counters)
    return JobFront(pending=pending, backlog=backlog, answered=answered, output_tokens=tokens)


def own_answers(counters: list[bytes | None]) -> tuple[int, int]:
    """How many texts were generated for a job, and their tokens, from its `COUNTERS`.

    What was copied from an identical request took no tokens, and says nothing of lengths.
    """
    done, failed, shared, cached, tokens = (int(count or 0) for count in counters)
    return max(done - failed - shared - cached, 0), tokens


def _pending_request(index: int, costs: bytes, attempts: int) -> PendingRequest:
    cost, prompt_tokens, prefix = read_costs(costs)
    return PendingRequest(index=index, cost=cost, attempts=attempts, prompt_tokens=prompt_tokens, prefix=prefix)

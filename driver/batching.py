"""Which requests travel together: the next of a job, in order, within a budget of requests and tokens. Pure."""

from collections.abc import Sequence

from broker.records import PendingRequest


def take_batch(pending: Sequence[PendingRequest], max_requests: int, max_tokens: int) -> tuple[PendingRequest, ...]:
    """The first requests that fit into the budget; the very first even alone above the token budget."""
    batch: list[PendingRequest] = []
    tokens = 0
    for request in pending[:max_requests]:
        tokens += request.cost
        if batch and tokens > max_tokens:
            break
        batch.append(request)
    return tuple(batch)

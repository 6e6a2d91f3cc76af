"""Ends requests that wait and must not run any more: each gets an output with an error."""

from broker.errors import JobNotFoundError
from broker.messages import failed_output
from broker.store import Store

PAGE = 512


def end_pending(store: Store, job_id: str, code: str, message: str) -> int:
    """Give every pending request of a job an output with this error. Returns how many there were.

    Requests that a worker holds get theirs from that worker. Doing it twice does no harm.
    """
    ended = 0
    try:
        while pending := store.queries.pending(job_id, PAGE):
            outputs = [failed_output(item.index, code, message) for item in pending]
            ended += store.ledger.commit("", job_id, "", outputs).accepted
    except JobNotFoundError:
        return ended  # it has expired meanwhile
    return ended

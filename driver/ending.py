"""Ends requests that wait and must not run any more: each gets an output with an error."""

from broker.errors import JobNotFoundError
from broker.messages import failed_output
from broker.store import Store

PAGE = 512


def end_pending(store: Store, job_id: str, code: str, message: str, *, pages: int | None = None) -> int:
    """Give every pending request of a job an output with this error. Returns how many there were.

    With `pages` at most so many times 512 of them, so that one huge job does not hold up everything else.

    Requests that a worker holds get theirs from that worker. Doing it twice does no harm.
    """
    ended = 0
    try:
        while pages != 0 and (pending := store.queries.pending(job_id, PAGE)):
            pages = None if pages is None else pages - 1
            outputs = [failed_output(item.index, code, message) for item in pending]
            ended += store.ledger.commit("", job_id, "", outputs).accepted
    except JobNotFoundError:
        return ended  # it has expired meanwhile
    return ended

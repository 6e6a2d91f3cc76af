"""Cuts requests into runs for the ledger: large ones, but nothing is kept back for what is slow to come."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from broker.costs import estimated_prompt_tokens
from broker.errors import InvalidRequestError
from broker.messages import Request
from broker.values import shown

RUN_REQUESTS = 256
RUN_BYTES = 1 << 20  # estimated
SLOW_S = 0.1  # who takes longer for the next request gives them one by one


def runs(requests: Iterable[Request], now_s: Callable[[], float] = time.monotonic) -> Iterator[tuple[Request, ...]]:
    """All requests, in runs of bounded size; what is there goes before the next is waited for again."""
    remaining = iter(requests)
    while run := next_run(remaining, RUN_REQUESTS, now_s)[0]:
        yield run


def next_run(
    requests: Iterator[Request], most: int, now_s: Callable[[], float] = time.monotonic
) -> tuple[tuple[Request, ...], bool]:
    """The next run, of at most so many requests; empty at the end. And whether they are slow to come."""
    run: list[Request] = []
    size, began_s, is_slow = 0, now_s(), False
    while len(run) < most and size < RUN_BYTES and not is_slow:
        request = next(requests, None)
        if request is None:
            break
        run.append(_repeatable(request))
        size += 4 * estimated_prompt_tokens(request)
        is_slow = now_s() - began_s >= SLOW_S
    return tuple(run), is_slow


def _repeatable(request: Request) -> Request:
    """A request that streams, with a seed: after a death its text must come again as it was given to its readers."""
    given: Any = request
    if not isinstance(given, Request):
        raise InvalidRequestError(f"what is added to an open job is a Request, not {shown(given)}")
    params = request.params
    if not request.stream or params.temperature == 0 or params.seed is not None:
        return request
    return msgspec.structs.replace(request, params=msgspec.structs.replace(params, seed=random.getrandbits(63)))

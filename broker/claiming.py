"""What the `claim` command gives of a batch. Pure."""

from typing import Any

from broker import codec
from broker.errors import MessageError
from broker.messages import Request
from broker.records import ClaimedBatch, ClaimedRequest


def batch(reply: list[Any]) -> ClaimedBatch:
    """The batch that is in a reply; a request that does not decode is told apart, and harms no other."""
    cancelled, deadline_ms, priority, *packed, payloads, saved = reply
    indices, attempts, sizes = (codec.decode(list[int], numbers) for numbers in packed)
    tokens = {int(index): ids for index, ids in zip(saved[::2], saved[1::2], strict=True)}
    requests: list[ClaimedRequest] = []
    unreadable: list[tuple[int, str]] = []
    end = 0
    for index, tries, size in zip(indices, attempts, sizes, strict=True):
        begin, end = end, end + size
        try:
            requests.append(_claimed(index, payloads[begin:end], tries, tokens.get(index)))
        except MessageError as error:
            unreadable.append((index, str(error)))
    return ClaimedBatch(
        requests=tuple(sorted(requests, key=lambda item: item.index)),
        unreadable=tuple(unreadable),
        cancelled=bool(cancelled),
        deadline_s=int(float(deadline_ms)) / 1000 if deadline_ms else None,
        priority=int(priority),
    )


def _claimed(index: int, payload: bytes, attempts: int, tokens: bytes | None) -> ClaimedRequest:
    return ClaimedRequest(
        index=index,
        request=codec.decode(Request, payload),
        attempts=attempts,
        generated=codec.decode(tuple[int, ...], tokens) if tokens else (),
    )

"""What the `submit` command is given of each request, and what it says when it refuses. Pure."""

from collections.abc import Sequence
from typing import Any

from broker import codec
from broker.admission import Refusal
from broker.costs import write_costs
from broker.identity import DIGEST_BYTES, digest
from broker.messages import Request

NO_DIGEST = bytes(DIGEST_BYTES)


def fields(requests: Sequence[Request]) -> list[Any]:
    """Requests as `submit` takes them: the costs of all, the digests of all, and each one's payload."""
    digests = [digest(request) for request in requests]
    return [
        codec.pack([write_costs(request) for request in requests]),
        b"".join(own or NO_DIGEST for own in digests) if any(digests) else b"",
        *map(codec.encode, requests),
    ]


def refusal(reply: list[Any]) -> Refusal:
    """The refusal that is in a reply."""
    fits, limit, *counts, speed = reply
    most, fill, wanted, scope_requests, scope_tokens, all_tokens = (int(count) for count in counts)
    return Refusal(
        fits=int(fits),
        limit=limit.decode(),
        most=most,
        fill=fill,
        wanted=wanted,
        scope_requests=scope_requests,
        scope_tokens=scope_tokens,
        all_tokens=all_tokens,
        tokens_per_s=float(speed),
    )

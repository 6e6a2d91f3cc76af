"""What the `submit` command is given of each request, and what it says when it refuses. Pure."""

from typing import Any

from broker import codec
from broker.admission import Refusal
from broker.identity import digest
from broker.keys import Keys
from broker.messages import Request


def keys(names: Keys, job_id: str) -> list[str]:
    """The keys that `submit` reads and changes, in its order."""
    job = names.job(job_id)
    return [
        job.record,
        job.requests,
        job.costs,
        job.pending,
        names.jobs,
        names.wake,
        names.closing,
        names.waiting,
        names.stopping,
        names.load,
        names.policy,
        job.outputs,
        job.committed,
        job.leaders,
        job.digests,
        job.followers,
        job.answers,
        job.answered,
        names.cache,
        names.cache_times,
        names.sharing,
    ]


def fields(request: Request) -> list[Any]:
    """A request as `submit` takes it: payload, costs, digest."""
    return [codec.encode(request), _costs(request), digest(request)]


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


def _costs(request: Request) -> str:
    prompt_tokens = request.params.n * request.estimated_prompt_tokens()
    return f"{request.estimated_tokens()} {prompt_tokens} {request.prefix_key()}"

"""What a request may occupy, as estimated before anybody has made tokens of it, and how its prompt begins. Pure.

`submit` writes it beside each request, as text; by it the driver forms batches without reading the requests.
"""

from functools import lru_cache
from zlib import crc32

from broker.messages import Request

# How much of a beginning prompts must share before it is worth to keep them together.
PREFIX_CHARACTERS = 256
PREFIX_TOKENS = 64


def estimated_prompt_tokens(request: Request) -> int:
    """The prompt's length in tokens where it is known, else its UTF-8 bytes / 4, at least 1; as it is truncated."""
    whole, kept = _whole_prompt_tokens(request), request.params.truncate_prompt_tokens
    return whole if kept is None else min(whole, kept)


def _whole_prompt_tokens(request: Request) -> int:
    if request.input_ids is not None:
        return len(request.input_ids)
    if request.prompt is not None:
        size = len(request.prompt) if request.prompt.isascii() else len(request.prompt.encode())
    else:
        size = sum(len(message.content.encode()) + 16 for message in request.messages or ())
    return max(1, size // 4)


def estimated_tokens(request: Request) -> int:
    """What the request may occupy: estimated prompt plus `max_tokens`, in tokens, for each of its `n` texts."""
    return request.params.n * (estimated_prompt_tokens(request) + request.params.max_tokens)


def prefix_key(request: Request) -> int:
    """A number that prompts with the same beginning (system message, or first characters) share; 0 if it is short.

    Which worker has read that beginning before is all that it decides.
    """
    ids = request.input_ids
    if ids is not None:
        start = ",".join(map(str, ids[:PREFIX_TOKENS])) if len(ids) >= PREFIX_TOKENS else ""
    elif request.prompt is not None:
        start = request.prompt[:PREFIX_CHARACTERS]
    else:
        start = request.messages[0].content if request.messages else ""
    if ids is None and len(start) < PREFIX_CHARACTERS:
        return 0
    return crc32(start.encode()) if start else 0


def write_costs(request: Request) -> str:
    """As `submit` takes it: tokens that it may occupy, those of them that are its prompt, and its prefix key."""
    prompt_tokens, params = estimated_prompt_tokens(request), request.params
    most_tokens = params.n * (prompt_tokens + params.max_tokens)
    return f"{most_tokens} {params.n * prompt_tokens} {prefix_key(request)}"


@lru_cache(maxsize=4096)  # many requests are alike, and those that wait are read again and again
def read_costs(costs: bytes) -> tuple[int, int, int]:
    """The three numbers of what is written; those that are not there are 0."""
    cost, prompt_tokens, prefix = (*map(int, costs.split()), 0, 0)[:3]
    return cost, prompt_tokens, prefix

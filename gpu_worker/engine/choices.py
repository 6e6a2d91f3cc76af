"""Several texts of one request (`n`): the requests that they are, and their tokens as one checkpoint."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from broker.messages import Request

_BORDER = -1  # no token has this id


def single_requests(request: Request) -> list[Request]:
    """One request for each text. The first has the seed of the whole: it is what it would be alone."""
    params = request.params
    seeds = [params.seed if place == 0 else _derived(params.seed, place) for place in range(params.n)]
    single = [msgspec.structs.replace(params, n=1, seed=seed) for seed in seeds]
    return [msgspec.structs.replace(request, params=own) for own in single]


def join_tokens(texts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The tokens of several texts as one checkpoint; those of one are the checkpoint."""
    joined: list[int] = []
    for place, tokens in enumerate(texts):
        if place:
            joined.append(_BORDER)
        joined += tokens
    return tuple(joined)


def split_tokens(checkpoint: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The tokens of each text; all empty where the checkpoint is not one of so many texts."""
    texts: list[list[int]] = [[]]
    for token in checkpoint:
        if token == _BORDER:
            texts.append([])
        else:
            texts[-1].append(token)
    return [tuple(tokens) for tokens in texts] if len(texts) == count else [()] * count


def _derived(seed: int | None, place: int) -> int | None:
    if seed is None:
        return None  # the engine gives each run a random one
    key = seed.to_bytes(8, "little", signed=True) + place.to_bytes(8, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1

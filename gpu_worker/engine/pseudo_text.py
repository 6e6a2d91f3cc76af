"""Prompts, tokens and text of the simulated engine: one token a word, and words that follow from the request."""

import itertools
from collections.abc import Collection, Sequence
from hashlib import blake2b

from broker.messages import Request, SamplingParams

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ei", "ou")
_SYLLABLES = tuple("".join(pair) for pair in itertools.product(_ONSETS, _VOWELS))
_WORDS = tuple("".join(pair) for pair in itertools.product(_SYLLABLES, _SYLLABLES))

VOCABULARY = len(_WORDS)  # 16384


def prompt_tokens(request: Request) -> tuple[int, ...]:
    """One id for each word of the prompt, and one for each role; the same word has always the same id."""
    if request.input_ids is not None:
        return request.input_ids
    if request.messages is not None:
        words = [word for turn in request.messages for word in (turn.role, *turn.content.split())]
    else:
        words = (request.prompt or "").split()
    return tuple(_number(word.encode("utf-8", "replace")) for word in words) or (0,)


def text_key(prompt_ids: Sequence[int], params: SamplingParams) -> bytes:
    """All that the answer depends on; the seed matters to sampling only."""
    sampling = (params.seed, params.temperature, params.top_p, params.top_k)
    what = (tuple(prompt_ids), sampling if params.temperature > 0 else ())
    return blake2b(repr(what).encode(), digest_size=16).digest()


def next_token(key: bytes, place: int, without: Collection[int] = ()) -> int:
    """The token at a place of the answer, from 0; not one of those that it must be without."""
    data = key + place.to_bytes(8, "little")
    while (token := _number(data)) in without:
        data += b"!"
    return token


def decode(token_ids: Sequence[int]) -> str:
    """The words of generated tokens, each behind a space."""
    return "".join(f" {_WORDS[token_id % VOCABULARY]}" for token_id in token_ids)


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=4).digest(), "little") % VOCABULARY

"""When two requests must have the same text: a digest of all that it follows from. Pure."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from broker.messages import Request
from broker.parameters import SamplingParams

DIGEST_BYTES = 16
_FIELDS = SamplingParams.__struct_fields__
_NUMBERS = {"temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
_SAMPLING_ONLY = {"seed", "top_p", "top_k"}  # matter to no greedy text


def digest(request: Request) -> bytes:
    """The same for requests that one model must answer alike; empty for a request that stands for itself.

    That is sampling without a seed, where each text is drawn anew, and a request whose text is wanted as it comes.
    """
    params = request.params
    if request.stream or not (params.temperature == 0 or params.seed is not None):
        return b""
    prompt = (request.prompt, request.messages, request.input_ids, request.return_input_ids)
    return blake2b(msgspec.msgpack.encode((prompt, _chosen(params))), digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=256)
def _chosen(params: SamplingParams) -> msgspec.Raw:
    """What of the parameters counts: by value, and so not as it is sent.

    There 0 and 0.0 differ, and a default that is given from one that is left out.
    """
    hidden = _SAMPLING_ONLY if params.temperature == 0 else ()
    values = [None if name in hidden else _plain(name, getattr(params, name)) for name in _FIELDS]
    return msgspec.Raw(msgspec.msgpack.encode(values))


def _plain(name: str, value: Any) -> Any:
    return float(value) if name in _NUMBERS and value is not None else value

"""When two requests must have the same text: a digest of all that it follows from. Pure."""

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
    is_greedy = params.temperature == 0
    if request.stream or not (is_greedy or params.seed is not None):
        return b""
    # By value, not as it is sent: there 0 and 0.0 differ, and a default that is given from one that is left out.
    chosen = [None if is_greedy and name in _SAMPLING_ONLY else _plain(name, getattr(params, name)) for name in _FIELDS]
    prompt = (request.prompt, request.messages, request.input_ids, request.return_input_ids)
    return blake2b(msgspec.msgpack.encode((prompt, chosen)), digest_size=DIGEST_BYTES).digest()


def _plain(name: str, value: Any) -> Any:
    return float(value) if name in _NUMBERS and value is not None else value

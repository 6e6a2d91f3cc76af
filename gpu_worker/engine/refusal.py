"""Refuses what an engine does not offer, by the names that it gives: no wish of a request is dropped in silence."""

from collections.abc import Collection

from broker.errors import UnsupportedParameterError
from broker.messages import Request
from broker.parameters import SamplingParams

_DEFAULTS = SamplingParams()
_PROMPTS = ("prompt", "messages", "input_ids")
# Ask for nothing, though they are not the default.
_NEUTRAL = {"repetition_penalty": 1}


def refuse(request: Request, names: Collection[str], who: str) -> None:
    """Refuse a request that needs one of `names`: fields of `SamplingParams`, or of `Request`.

    Raises:
        UnsupportedParameterError: names the field, and `who` does not offer it.
    """
    for name in sorted(names):
        if _wanted(request, name):
            raise UnsupportedParameterError(f"{name} is not offered by {who}; see docs/parameters.md")


def _wanted(request: Request, name: str) -> bool:
    if name in _PROMPTS:
        return getattr(request, name) is not None
    if name in Request.__struct_fields__:
        return bool(getattr(request, name))
    value = getattr(request.params, name)
    return value not in (getattr(_DEFAULTS, name), _NEUTRAL.get(name))

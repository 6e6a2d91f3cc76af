"""Prompts of any form as requests, checked before the first of them is sent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from broker import codec
from broker.chat import ChatMessage, chat_messages
from broker.errors import InvalidRequestError, MessageError
from broker.messages import Request, SamplingParams
from broker.values import is_whole_number, shown

# Text, token ids, or chat turns.
Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any] | ChatMessage]


def as_requests(
    prompts: Sequence[Prompt | Request],
    params: SamplingParams | Sequence[SamplingParams] | None,
    *,
    stream: bool = False,
) -> list[Request]:
    """Prompts of any form as requests; with `stream`, all of them stream. A Request keeps its own parameters.

    Raises:
        InvalidRequestError: no prompts, `params` that no prompt would have, or one that cannot be run; names its place.
    """
    given: Any = prompts
    if isinstance(given, str):
        raise InvalidRequestError("prompts must be a list of prompts, not one string: submit([prompt])")
    if not isinstance(given, Sequence):
        raise InvalidRequestError(f"prompts must be a list of prompts, not {shown(given)}")
    if not prompts:
        raise InvalidRequestError("submit needs at least one prompt")
    if params is not None:
        _refuse_idle_params(prompts)
    if isinstance(params, Sequence):
        _refuse_two_params(prompts)
    pairs = zip(prompts, _spread(params, len(prompts)), strict=True)
    return [_checked(prompt, own, place, stream=stream) for place, (prompt, own) in enumerate(pairs)]


def requests_one_by_one(prompts: Iterable[Prompt | Request], params: SamplingParams | None) -> Iterator[Request]:
    """Prompts of any number as requests, each when it is asked for.

    Raises:
        InvalidRequestError: the prompts are one string, or a list of Requests with `params`; later, a prompt cannot be
            run, or the first is a Request, though `params` are given; its place is named.
    """
    given: Any = prompts
    if isinstance(given, str):
        raise InvalidRequestError("prompts must be prompts, not one string: run([prompt])")
    if not isinstance(given, Iterable):
        raise InvalidRequestError(f"prompts must be prompts, not {shown(given)}")
    if params is not None and isinstance(prompts, Sequence):
        _refuse_idle_params(prompts)
    elif params is not None:
        prompts = _with_use_for_params(prompts)
    return (_checked(prompt, params or SamplingParams(), place) for place, prompt in enumerate(prompts))


def _refuse_idle_params(prompts: Sequence[Prompt | Request]) -> None:
    if prompts and all(isinstance(prompt, Request) for prompt in prompts):
        raise InvalidRequestError("every prompt is a Request, which has params of its own: leave params out")


def _refuse_two_params(prompts: Sequence[Prompt | Request]) -> None:
    for place, prompt in enumerate(prompts):
        if isinstance(prompt, Request):
            raise InvalidRequestError(
                f"prompts[{place}] is a Request, which has params of its own, and params has others for it: make a "
                "Request of each prompt, and leave params out"
            )


def _with_use_for_params(prompts: Iterable[Prompt | Request]) -> Iterator[Prompt | Request]:
    """The same prompts, of which the first needs params: if it is a Request, nobody knows whether any other does."""
    for place, prompt in enumerate(prompts):
        if place == 0 and isinstance(prompt, Request):
            raise InvalidRequestError(
                "prompts[0] is a Request, which has params of its own, and params were given too: leave params out, "
                "or, if prompts follow that need them, make a Request of each"
            )
        yield prompt


def _checked(prompt: Any, params: SamplingParams, place: int, *, stream: bool = False) -> Request:
    """A prompt as a request that can be sent; an error names its place."""
    try:
        request = _as_request(prompt, params)
        request = msgspec.structs.replace(request, stream=stream) if stream else request
        codec.encode(request)  # now, as the first runs would be sent before the one that fails
    except InvalidRequestError as error:
        raise type(error)(f"prompts[{place}]: {error}") from error
    except MessageError as error:
        raise InvalidRequestError(f"prompts[{place}]: {error}") from error
    return request


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Iterable[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    given: Any = params
    if not isinstance(given, Sequence):
        raise InvalidRequestError(f"params must be SamplingParams, or a list of them, not {shown(given)}")
    if len(params) != count:
        raise InvalidRequestError(f"give one SamplingParams, or one for each prompt: {len(params)} for {count} prompts")
    return params


def _as_request(prompt: Any, params: SamplingParams) -> Request:
    if isinstance(prompt, Request):
        return prompt
    if isinstance(prompt, str):
        return Request(params=params, prompt=prompt)
    if isinstance(prompt, (bytes, bytearray, memoryview)):  # sequences of whole numbers, but hardly token ids
        raise InvalidRequestError(f"a prompt's text is a str, not bytes: decode {shown(prompt)}")
    if isinstance(prompt, Sequence) and prompt and all(is_whole_number(item) for item in prompt):
        return Request(params=params, input_ids=tuple(int(item) for item in prompt))
    if isinstance(prompt, Sequence) and prompt and all(isinstance(item, (Mapping, ChatMessage)) for item in prompt):
        return Request(params=params, messages=chat_messages(prompt))
    raise InvalidRequestError(
        f"a prompt is text, a list of token ids, or a list of chat messages, and not empty; not {shown(prompt)}"
    )

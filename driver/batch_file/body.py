"""The body of a batch line as a `Request`: OpenAI's chat and completion parameters, checked.

Every error message begins with the path of the field inside the body. null is the same as leaving a field out.
"""

from collections.abc import Mapping
from typing import Any, cast

from broker.chat import ChatMessage, joined_text
from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.messages import Request
from broker.parameters import MAX_ALTERNATIVES, SamplingParams
from driver.batch_file.items import RequestKind
from driver.batch_file.parameters import SAMPLING, refuse_unsupported, refuse_unsupported_in_message

# OpenAI's default for completions; for a chat OpenAI has none but the context, which would let one
# forgotten field fill a GPU.
DEFAULT_MAX_TOKENS = {RequestKind.CHAT: 256, RequestKind.COMPLETION: 16}

_MAX_TOKENS_NAMES = ("max_completion_tokens", "max_tokens", "max_new_tokens")
_TOKEN_ID_LIMIT = 1 << 31
_COMPLETION_ALTERNATIVES = 5  # as OpenAI has it


def parse_body(body: Mapping[str, Any], kind: RequestKind) -> Request:
    """The request that the body asks for.

    Raises:
        UnsupportedParameterError: it asks for something that Stoker does not do.
        InvalidRequestError: a field is missing, of the wrong type or out of range.
    """
    refuse_unsupported(body, kind)
    params = _sampling_params(body, kind)
    if kind is RequestKind.CHAT:
        return Request(params=params, messages=_messages(body.get("messages")))
    return _completion_request(body, params)


def parse_model(body: Mapping[str, Any]) -> str | None:
    """The model that the body names, if any.

    Raises:
        InvalidRequestError: it is not a non-empty string.
    """
    model = body.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InvalidRequestError(f"model must be a non-empty string, not {model!r}")
    return model


def _sampling_params(body: Mapping[str, Any], kind: RequestKind) -> SamplingParams:
    name, limit = _max_tokens(body, kind)
    given = {field: body[field] for field in SAMPLING if body.get(field) is not None}
    given |= _chat_logprobs(body) if kind is RequestKind.CHAT else _completion_only(body)
    try:
        return SamplingParams(max_tokens=limit, **given)
    except InvalidRequestError as error:
        message = str(error)
        if message.startswith("max_tokens "):
            message = name + message.removeprefix("max_tokens")  # the name that the user wrote
        raise type(error)(message) from error
    except OverflowError as error:  # a whole number of more than 308 digits
        raise InvalidRequestError("temperature, top_p, a penalty or a bias is far out of range") from error


def _chat_logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's: a flag, and how many of the likeliest tokens go with each."""
    wanted, count = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequestError(f"logprobs must be true or false, not {wanted!r}")
    if count is not None:
        _require_count("top_logprobs", count, MAX_ALTERNATIVES)
    if count and not wanted:
        raise InvalidRequestError(f"top_logprobs is {count}, but logprobs is not true")
    return {"logprobs": count or 0} if wanted else {}


def _completion_only(body: Mapping[str, Any]) -> dict[str, Any]:
    """A completion's `logprobs` is a number, and none is null or false."""
    count, echo = body.get("logprobs"), body.get("echo")
    given: dict[str, Any] = {} if echo is None else {"echo": echo}
    if count is None or count is False:
        return given
    _require_count("logprobs", count, _COMPLETION_ALTERNATIVES)
    return given | {"logprobs": count}


def _require_count(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidRequestError(f"{name} must be a whole number from 0 to {most}, not {value!r}")


def _max_tokens(body: Mapping[str, Any], kind: RequestKind) -> tuple[str, Any]:
    given = [name for name in _MAX_TOKENS_NAMES if body.get(name) is not None]
    if not given:
        return "max_tokens", DEFAULT_MAX_TOKENS[kind]
    if any(body[name] != body[given[0]] for name in given):
        raise InvalidRequestError(f"{' and '.join(given)} differ; give one of them")
    return given[0], body[given[0]]


def _messages(turns: Any) -> tuple[ChatMessage, ...]:
    if turns is None:
        raise InvalidRequestError("messages is missing; give the turns of the chat")
    if not isinstance(turns, list):
        raise InvalidRequestError("messages must be a list of objects with role and content")
    return tuple(_message(turn, f"messages[{i}]") for i, turn in enumerate(cast("list[Any]", turns)))


def _message(turn: Any, path: str) -> ChatMessage:
    if not isinstance(turn, dict):
        raise InvalidRequestError(f"{path} must be an object with role and content")
    fields = cast("dict[str, Any]", turn)
    refuse_unsupported_in_message(fields, path)
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{path}.role must be a string such as user, not {role!r}")
    return ChatMessage(role=role, content=joined_text(fields.get("content"), f"{path}.content"))


def _completion_request(body: Mapping[str, Any], params: SamplingParams) -> Request:
    prompt, input_ids = body.get("prompt"), body.get("input_ids")
    if prompt is not None and input_ids is not None:
        raise InvalidRequestError("prompt and input_ids are both given; give one of them")
    if input_ids is not None:
        return Request(params=params, input_ids=_token_ids(input_ids, "input_ids"))
    prompt = _only_prompt(prompt)
    if isinstance(prompt, str):
        return Request(params=params, prompt=prompt)
    if not prompt:
        raise InvalidRequestError("prompt is missing or empty; give a string or a list of token ids")
    return Request(params=params, input_ids=_token_ids(prompt, "prompt"))


def _only_prompt(prompt: Any) -> Any:
    """The one prompt in a list of prompts; anything else as it is."""
    if not isinstance(prompt, list) or not prompt:
        return prompt
    prompts = cast("list[Any]", prompt)
    if not isinstance(prompts[0], str | list):
        return prompts
    if len(prompts) > 1:
        raise UnsupportedParameterError(
            f"prompt holds {len(prompts)} prompts, which is not offered; write one line for each"
        )
    return prompts[0]


def _token_ids(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidRequestError(f"{path} must be a string or a list of token ids, not {value!r}")
    ids = cast("list[Any]", value)
    for place, item in enumerate(ids):
        if type(item) is not int or not 0 <= item < _TOKEN_ID_LIMIT:
            raise InvalidRequestError(f"{path}[{place}] must be a token id, not {item!r}")
    return tuple(ids)

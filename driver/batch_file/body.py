"""The body of a batch line as a `Request`: OpenAI's chat and completion parameters, checked.

Every error message begins with the path of the field inside the body. null is the same as leaving a field out.
"""

from collections.abc import Mapping
from typing import Any, cast

from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.messages import ChatMessage, Request, SamplingParams
from driver.batch_file.items import RequestKind
from driver.batch_file.parameters import refuse_unsupported, refuse_unsupported_in_message

# OpenAI's default for completions; for a chat OpenAI has none but the context, which would let one
# forgotten field fill a GPU.
DEFAULT_MAX_TOKENS = {RequestKind.CHAT: 256, RequestKind.COMPLETION: 16}

_MAX_TOKENS_NAMES = ("max_completion_tokens", "max_tokens", "max_new_tokens")
_TOKEN_ID_LIMIT = 1 << 31


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
    given = {
        field: body[field] for field in ("temperature", "top_p", "top_k", "stop", "seed") if body.get(field) is not None
    }
    try:
        return SamplingParams(max_tokens=limit, **given)
    except InvalidRequestError as error:
        message = str(error)
        if message.startswith("max_tokens "):
            message = name + message.removeprefix("max_tokens")  # the name that the user wrote
        raise InvalidRequestError(message) from error
    except OverflowError as error:  # a whole number of more than 308 digits
        raise InvalidRequestError("temperature or top_p is far out of range") from error


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
    return ChatMessage(role=role, content=_content(fields.get("content"), f"{path}.content"))


def _content(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = enumerate(cast("list[Any]", content))
        # A new line between parts is what vLLM and llama.cpp make of them.
        return "\n".join(_text_part(part, f"{path}[{i}]") for i, part in parts)
    raise InvalidRequestError(f"{path} must be a string or a list of text parts, not {content!r}")


def _text_part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequestError(f"{path} must be an object with type and text")
    fields = cast("dict[str, Any]", part)
    if fields.get("type") != "text":
        raise UnsupportedParameterError(f"{path}.type {fields.get('type')!r} is not offered; only text is")
    text = fields.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path}.text must be a string, not {text!r}")
    return text


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

"""The facade's simple interface: a task as a plain mapping, and its result as another."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from broker.chat import chat_messages
from broker.errors import InvalidRequestError
from broker.messages import Choice, Output, Request, SamplingParams, TokenLogprob
from broker.values import is_whole_number, shown
from driver.errors import RequestFailedError

PROMPT_FIELDS = ("input_ids", "prompt", "messages")
FLAGS = ("stream",)
PARAMETER_NAMES = {"max_new_tokens": "max_tokens"} | {name: name for name in SamplingParams.__struct_fields__}


def task_request(task: Any) -> Request:
    """The request that a task asks for; its prompt's token ids come back with the result.

    Raises:
        InvalidRequestError: it is no mapping, a field is unknown, or a value does not fit.
    """
    if not isinstance(task, Mapping):
        raise InvalidRequestError(f"a task must be a mapping of fields to values, not {shown(task)}")
    fields = cast("Mapping[str, Any]", task)
    names = (*PROMPT_FIELDS, *FLAGS, *PARAMETER_NAMES)
    unknown = [name for name in fields if name not in names]
    if unknown:
        known = ", ".join(names)
        raise InvalidRequestError(f"unknown field {unknown[0]!r} in a task; the known ones are {known}")
    if "max_tokens" in fields and "max_new_tokens" in fields:
        raise InvalidRequestError("max_tokens and max_new_tokens are one thing; give one of them")
    params = SamplingParams(**{PARAMETER_NAMES[name]: fields[name] for name in PARAMETER_NAMES if name in fields})
    input_ids, messages = fields.get("input_ids"), fields.get("messages")
    return Request(
        params=params,
        prompt=fields.get("prompt"),
        input_ids=None if input_ids is None else _token_ids(input_ids),
        messages=None if messages is None else chat_messages(messages),
        return_input_ids=True,
        stream=fields.get("stream", False),
    )


def _token_ids(given: Any) -> tuple[int, ...]:
    """Token ids from any sequence of whole numbers, an array or a tensor on the CPU among them."""
    items = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(items, Sequence) or not all(is_whole_number(item) for item in cast("Sequence[Any]", items)):
        raise InvalidRequestError(f"input_ids must be a list of token ids, not {shown(given)}")
    return tuple(int(token) for token in cast("Sequence[Any]", items))


def task_result(output: Output) -> dict[str, Any]:
    """An output as the fields of a task's result.

    Raises:
        RequestFailedError: it is an error.
    """
    if output.error is not None:
        raise RequestFailedError(output.error.code, output.error.message)
    return {
        **_text_fields(output),
        "input_ids": list(output.input_ids or ()),
        "worker_id": output.worker_id,
        **({"choices": [_text_fields(choice) for choice in output.choices]} if output.choices else {}),
    }


def _text_fields(text: Output | Choice) -> dict[str, Any]:
    return {
        "generated_text": text.text,
        "output_ids": list(text.token_ids),
        "finish_reason": str(text.finish_reason),
        **({} if text.logprobs is None else {"logprobs": [_logprob_fields(item) for item in text.logprobs]}),
    }


def _logprob_fields(item: TokenLogprob) -> dict[str, Any]:
    alternatives = [msgspec.structs.asdict(other) for other in item.alternatives]
    return msgspec.structs.asdict(item) | {"alternatives": alternatives}

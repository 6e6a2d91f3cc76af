"""The fields of a request body: run, known but not offered, or without effect on the text.

A parameter that is not offered is accepted only at a value that asks for nothing; null always does. A
name in none of the tables is refused, so that no wish is dropped in silence.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import UnsupportedParameterError
from driver.batch_file.items import RequestKind

_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_new_tokens"})
_SAMPLING = _LIMITS | {"model", "temperature", "top_p", "top_k", "stop", "seed"}

SUPPORTED: dict[RequestKind, frozenset[str]] = {
    RequestKind.CHAT: _SAMPLING | {"messages"},
    RequestKind.COMPLETION: _SAMPLING | {"prompt", "input_ids"},
}

MESSAGE_FIELDS = frozenset({"role", "content"})

# Name -> values, besides null, that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "stream": (False,),
    "stream_options": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}

# What an assistant's turn carries when it was copied from a response.
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}

# These say who asks, or how to bill and cache; the text is the same without them.
IGNORED = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


def refuse_unsupported(body: Mapping[str, Any], kind: RequestKind) -> None:
    """Refuse a request body that asks for more than Stoker does.

    Raises:
        UnsupportedParameterError: the message begins with the parameter's name.
    """
    _refuse(body, SUPPORTED[kind] | IGNORED, NEUTRAL, "")


def refuse_unsupported_in_message(message: Mapping[str, Any], path: str) -> None:
    """The same for one turn of a chat; `path` is the turn's, such as `messages[0]`."""
    _refuse(message, MESSAGE_FIELDS, MESSAGE_NEUTRAL, f"{path}.")


def _refuse(
    fields: Mapping[str, Any],
    accepted: frozenset[str],
    neutral: Mapping[str, tuple[Any, ...]],
    prefix: str,
) -> None:
    for name, value in fields.items():
        if name in accepted:
            continue
        if name not in neutral:
            raise UnsupportedParameterError(f"{prefix}{name} is not a known parameter here; remove it")
        if value is not None and not any(_same(value, choice) for choice in neutral[name]):
            raise UnsupportedParameterError(f"{prefix}{name} is not offered; remove it")


def _same(value: Any, choice: Any) -> bool:
    # To Python False equals 0, but `"logprobs": 0` asks for the log probability of each token.
    return isinstance(value, bool) == isinstance(choice, bool) and value == choice

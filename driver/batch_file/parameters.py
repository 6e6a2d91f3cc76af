"""The fields of a request body: run, known but not offered, or without effect on the text.

A parameter that is not offered is accepted only at a value that asks for nothing; null always does. A
name in none of the tables is refused, so that no wish is dropped in silence.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import UnsupportedParameterError
from driver.batch_file.items import RequestKind

_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_new_tokens"})
# These go into `SamplingParams` as they are.
SAMPLING = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
        "truncate_prompt_tokens",
    }
)
_BOTH = _LIMITS | SAMPLING | {"model", "logprobs"}

SUPPORTED: dict[RequestKind, frozenset[str]] = {
    RequestKind.CHAT: _BOTH | {"messages", "top_logprobs"},
    RequestKind.COMPLETION: _BOTH | {"prompt", "input_ids", "echo"},
}

MESSAGE_FIELDS = frozenset({"role", "content"})

# Name -> values, besides null, that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
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

_REASONS = {"stream": " in a batch file, whose answers are written when they are complete"}

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
            reason = _REASONS.get(name, "")
            raise UnsupportedParameterError(f"{prefix}{name} is not offered{reason}; remove it")


def _same(value: Any, choice: Any) -> bool:
    # To Python False equals 0 and True equals 1.
    return isinstance(value, bool) == isinstance(choice, bool) and value == choice

"""What goes to an OpenAI-compatible server and what comes back: a request as a JSON body, an event of its stream.

Servers differ in what they know beyond OpenAI's own fields, and some drop in silence what they do not know. So a
`Dialect` says what may be asked; everything else is refused here.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from broker.errors import UnsupportedParameterError
from broker.messages import FinishReason, Request, Usage
from broker.parameters import SamplingParams
from gpu_worker.engine.refusal import refuse

_STANDARD = ("seed", "presence_penalty", "frequency_penalty", "logit_bias")
_EXTENDED = ("top_k", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output")
# Offered by every server, or done on this side.
_ALWAYS = ("max_tokens", "temperature", "top_p", "stop", "n", "echo")


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of server is asked for, and how. `offers` are names of `SamplingParams` and of prompts' forms."""

    name: str
    offers: frozenset[str]
    renamed: Mapping[str, str] = {}
    constant: Mapping[str, Any] = {}  # sent always: servers have defaults of their own, of the model or their makers
    whole_vocabulary: int = 0  # what it calls a `top_k` of all
    seeds: int = 1 << 63  # below this, and not negative where it is less than 64 bits
    slots: int = 64  # requests at once where the settings leave it open
    cuts_stop: bool = True  # whether its text ends before the stop string

    @property
    def refuses(self) -> frozenset[str]:
        """Names of `SamplingParams`, and of a prompt's forms, that are refused."""
        return frozenset((*SamplingParams.__struct_fields__, "input_ids")) - self.offers


def _dialect(name: str, *fields: str, **more: Any) -> Dialect:
    return Dialect(name=name, offers=frozenset((*_ALWAYS, *fields)), **more)


_USAGE = {"stream_options": {"include_usage": True}}
DIALECTS = {
    item.name: item
    for item in (
        _dialect("openai", *_STANDARD, "input_ids", constant=_USAGE),
        _dialect(
            "vllm",
            *(*_STANDARD, *_EXTENDED, "truncate_prompt_tokens", "input_ids"),
            constant={"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "min_p": 0.0},
        ),
        _dialect(
            "sglang",
            # Without its deterministic mode it takes a seed and does not keep to it.
            *({*_STANDARD, *_EXTENDED} - {"seed"}),
            "input_ids",
            renamed={"include_stop_str_in_output": "no_stop_trim"},
            constant=_USAGE | {"min_p": 0.0},
            whole_vocabulary=-1,
        ),
        _dialect(
            "tensorrt-llm",
            *(*_STANDARD, *_EXTENDED, "input_ids"),
            constant=_USAGE | {"min_p": 0.0},
        ),
        _dialect(
            "llamacpp",
            # Its presence and frequency penalties count the prompt's tokens, too.
            *("seed", "logit_bias", "top_k", "repetition_penalty", "ignore_eos", "input_ids"),
            renamed={"repetition_penalty": "repeat_penalty"},
            constant=_USAGE | {"min_p": 0.0, "repeat_last_n": -1},
            seeds=(1 << 32) - 1,
        ),
        _dialect(
            "transformers",
            *("top_k", "repetition_penalty", "logit_bias", "include_stop_str_in_output"),
            slots=1,  # it runs one after another
            cuts_stop=False,
        ),
    )
}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request to the server."""

    path: str
    body: dict[str, Any]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of a stream says."""

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


class ServerError(Exception):
    """What a server says instead of text: an HTTP status, and words. Does not leave the engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def call_of(dialect: Dialect, model: str, request: Request) -> Call:
    """The request as this kind of server takes it.

    Raises:
        UnsupportedParameterError: the server does not offer something that the request asks for.
    """
    refuse(request, dialect.refuses, f"servers of the kind {dialect.name}")
    params = request.params
    body: dict[str, Any] = {"model": model, "stream": True, **dialect.constant}
    if dialect.name == "transformers":
        body["generation_config"] = json.dumps(_generation_config(params))
    else:
        body |= _fields(dialect, params)
    if request.messages is not None:
        body["messages"] = [msgspec.structs.asdict(turn) for turn in request.messages]
        return Call(path="v1/chat/completions", body=body)
    body["prompt"] = request.prompt if request.input_ids is None else list(request.input_ids)
    return Call(path="v1/completions", body=body)


def _fields(dialect: Dialect, params: SamplingParams) -> dict[str, Any]:
    seed = params.seed
    if seed is not None and dialect.seeds < 1 << 63 and not 0 <= seed < dialect.seeds:
        raise UnsupportedParameterError(f"seed must be from 0 to {dialect.seeds - 1} for {dialect.name}, not {seed}")
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stop": list(params.stop) or None,
        "seed": seed,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
        "repetition_penalty": params.repetition_penalty,
        "min_tokens": params.min_tokens or None,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "ignore_eos": params.ignore_eos or None,
        "include_stop_str_in_output": params.include_stop_str_in_output or None,
        "truncate_prompt_tokens": params.truncate_prompt_tokens,
    }
    if "top_k" in dialect.offers:
        fields["top_k"] = params.top_k or dialect.whole_vocabulary
    return {dialect.renamed.get(name, name): value for name, value in fields.items() if value is not None}


def _generation_config(params: SamplingParams) -> dict[str, Any]:
    """For `transformers serve`, whose own fields cannot say that a request is to be sampled."""
    config: dict[str, Any] = {"max_new_tokens": params.max_tokens, "do_sample": params.temperature > 0}
    if params.temperature > 0:
        config |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    if params.stop:
        config["stop_strings"] = list(params.stop)
    if params.repetition_penalty is not None:
        config["repetition_penalty"] = params.repetition_penalty
    if params.logit_bias:
        config["sequence_bias"] = [[[token], float(bias)] for token, bias in params.logit_bias]
    return config


_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


def read_event(data: str) -> Event:
    """One event's data as JSON.

    Raises:
        ServerError: it is none, or is the server's error.
    """
    try:
        given: Any = json.loads(data)
    except ValueError as error:
        raise ServerError(502, f"the server sent what is no JSON: {data[:200]!r}") from error
    if not isinstance(given, dict):
        raise ServerError(502, f"the server sent no event: {data[:200]!r}")
    fields = cast("dict[str, Any]", given)
    if fields.get("error"):
        raise ServerError(_status(fields["error"]), error_text(data))
    try:
        return _event(fields)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ServerError(502, f"the server sent an event that cannot be read: {data[:200]!r}") from error


def _event(fields: Mapping[str, Any]) -> Event:
    usage = None
    if fields.get("usage"):
        counts = fields["usage"]
        usage = Usage(
            prompt_tokens=int(counts["prompt_tokens"]), completion_tokens=int(counts.get("completion_tokens") or 0)
        )
    if not fields.get("choices"):
        return Event(usage=usage)
    choice = fields["choices"][0]
    text = choice["delta"].get("content") if "delta" in choice else choice["text"]
    if not isinstance(text, str | None):
        raise TypeError
    reason = choice.get("finish_reason")
    if reason and reason not in _REASONS:
        raise ServerError(500, f"the server ended the text with {reason!r}")
    return Event(text=text or "", finish_reason=_REASONS.get(reason), usage=usage)


def _status(error: Any) -> int:
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 500


def error_text(body: str) -> str:
    """The server's words for people, out of the many shapes that error bodies have."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        return body.strip()[:500]
    for name in ("error", "message", "detail"):
        if isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(name, cast("Any", found))
    return (found if isinstance(found, str) else json.dumps(found))[:500]

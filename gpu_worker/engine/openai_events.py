"""What comes from an OpenAI-compatible server: the events of a stream, and errors in their many shapes."""

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from broker.messages import FinishReason, Usage

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


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


def read_event(data: str) -> Event:
    """One event's data as JSON.

    Raises:
        ServerError: it is none, or is the server's error.
    """
    try:
        given: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ServerError(502, f"the server sent what is no JSON: {data[:200]!r}") from error
    if not isinstance(given, dict):
        raise ServerError(502, f"the server sent no event: {data[:200]!r}")
    fields = cast("dict[str, Any]", given)
    if fields.get("error"):
        raise ServerError(_status(fields["error"]), error_text(data))
    try:
        return _event(fields)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
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
        # The filter would end it again; whatever else there is, such as "abort", may pass.
        raise ServerError(400 if reason == "content_filter" else 500, f"the server ended the text with {reason!r}")
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

"""The turns of a chat: from what callers and files give to messages that can be sent.

A turn's content is a string, or OpenAI's list of parts, of which only text is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from broker.errors import InvalidRequestError, UnsupportedParameterError
from broker.values import is_text, shown


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a chat: `role` (system, user, assistant, …) and its text."""

    role: str
    content: str


def chat_messages(turns: Sequence[Mapping[str, Any] | ChatMessage]) -> tuple[ChatMessage, ...]:
    """Chat turns given as dicts, as messages; content may be a list of text parts.

    Raises:
        InvalidRequestError: a turn has no role or no text; the message names its place.
        UnsupportedParameterError: a turn has a part that is not text, or tool calls.
    """
    given: Any = turns
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidRequestError(f"messages must be a list of turns with role and content, not {shown(given)}")
    plain = [_plain_turn(turn, f"messages[{place}]") for place, turn in enumerate(turns)]
    try:
        return msgspec.convert(plain, tuple[ChatMessage, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"messages: {error}") from error


def _plain_turn(turn: Mapping[str, Any] | ChatMessage, path: str) -> Mapping[str, Any] | ChatMessage:
    if not isinstance(turn, Mapping):
        return turn
    for name, value in turn.items():
        # What is empty asks for nothing, as in a turn that was copied from a response.
        if name not in ChatMessage.__struct_fields__ and value not in (None, [], ""):
            raise UnsupportedParameterError(f"{path}.{name} is not offered; remove it")
    if isinstance(turn.get("content"), list):
        return {**turn, "content": joined_text(turn["content"], f"{path}.content")}
    return turn


def joined_text(content: Any, path: str) -> str:
    """The text of a turn's content; `path` is where it stands, such as `messages[0].content`.

    Raises:
        UnsupportedParameterError: a part is not text.
        InvalidRequestError: neither a string nor a list of parts, or a part without its text.
    """
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


def is_turn(value: Any) -> bool:
    """Whether a value is a turn whose texts can be sent."""
    return isinstance(value, ChatMessage) and is_text(value.role) and is_text(value.content)


def wrong_turns(turns: Any) -> str:
    """What is wrong with turns, by its place if it is a text that cannot be sent."""
    if isinstance(turns, tuple):
        for place, turn in enumerate(cast("tuple[Any, ...]", turns)):
            for name in ("role", "content") if isinstance(turn, ChatMessage) else ():
                if not is_text(text := getattr(turn, name)):
                    return f"messages[{place}].{name} must be text that UTF-8 can hold, not {shown(text)}"
    return f"messages must be a tuple of ChatMessage, not {shown(turns)}"

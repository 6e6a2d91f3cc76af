"""A chat turn's content as one text: a string, or OpenAI's list of parts, of which only text is read."""

from typing import Any, cast

from broker.errors import InvalidRequestError, UnsupportedParameterError


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

"""The JSON object on one line, or why there is none.

msgspec decides what is JSON. Only where it refuses a line is Python's more lenient parser asked, to tell the
user which field holds the NaN and to give the error line the request's custom_id.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, cast

import msgspec


class NotAnObjectError(Exception):
    """The line is not a JSON object. `custom_id` is what could still be read of it."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


def decode_object(line: bytes) -> dict[str, Any]:
    """The object on the line.

    Raises:
        NotAnObjectError: it is not UTF-8, not JSON, or JSON of another type.
        RecursionError: it is nested deeper than Python's stack.
    """
    try:
        value = msgspec.json.decode(line)
    except ValueError as error:  # also msgspec's own errors
        fields = _read_leniently(line)
        raise NotAnObjectError(_reason(line, fields, error), _custom_id(fields)) from error
    if not isinstance(value, dict):
        raise NotAnObjectError(
            f'not a JSON object but {_json_type(value)}; write {{"custom_id": ..., "url": ..., "body": ...}}'
        )
    return cast("dict[str, Any]", value)


def _read_leniently(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8", "surrogateescape"))
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _custom_id(fields: dict[str, Any]) -> str | None:
    value = fields.get("custom_id")
    if not isinstance(value, str) or not value:
        return None
    try:
        value.encode()  # half a surrogate pair, or bytes that are not UTF-8, could not be written
    except UnicodeEncodeError:
        return None
    return value


def _reason(line: bytes, fields: dict[str, Any], error: ValueError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as bad:
        byte = line[bad.start]
        return f"not UTF-8: byte 0x{byte:02x} at position {bad.start}; save the file as UTF-8"
    for path in _paths_of_non_finite(fields):
        return f"{path} must be a finite number; JSON has no NaN or Infinity"
    reason = str(error).removeprefix("JSON is malformed: ").removesuffix(" - at `$[...]`")
    return f"not JSON: {reason}; write one whole JSON object on each line"


def _paths_of_non_finite(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _paths_of_non_finite(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            yield from _paths_of_non_finite(item, f"{path}[{place}]")


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an array")

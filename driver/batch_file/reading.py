"""Batch input: OpenAI's JSONL, read one line at a time, each line a request or a named problem.

A byte order mark at the start of a line (of the file, or of files joined into one), CRLF line ends and
blank lines are accepted in silence. Of each line `custom_id`, `method`, `url` and `body` are read; other
fields beside them are left alone, other fields inside the body are not.
"""

import codecs
import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any, BinaryIO, cast

from broker.errors import InvalidRequestError
from driver.batch_file.body import parse_body, parse_model
from driver.batch_file.decoding import NotAnObjectError, decode_object
from driver.batch_file.items import BadLine, BatchLine, RequestKind
from driver.batch_file.key_book import KeyBook
from driver.batch_file.lines import MAX_LINE_BYTES, numbered_lines

URLS = {
    "/v1/chat/completions": RequestKind.CHAT,
    "/v1/completions": RequestKind.COMPLETION,
}
_MESSAGE_LIMIT = 400


def read_batch(file: BinaryIO, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[BatchLine | BadLine]:
    """One item for each line that is not blank, in the file's order.

    It holds one line at a time; which custom_ids there were is kept on disk. The second line with a custom_id
    is a bad line, also where the first was bad itself.
    """
    with closing(KeyBook()) as first_lines:
        yield from _read_lines(file, max_line_bytes, first_lines)


def _read_lines(file: BinaryIO, max_line_bytes: int, first_lines: KeyBook) -> Iterator[BatchLine | BadLine]:
    for number, line in numbered_lines(file, max_line_bytes):
        if line is None:
            message = f"longer than {max_line_bytes} bytes; split the request or shorten it"
            yield _bad(number, None, "line_too_long", message)
        elif content := line.removeprefix(codecs.BOM_UTF8).strip():
            yield _read_line(number, content, first_lines)


class _BadFieldError(Exception):
    """A field beside the body is wrong: its code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _read_line(number: int, line: bytes, first_lines: KeyBook) -> BatchLine | BadLine:
    custom_id: str | None = None
    try:
        fields = decode_object(line)
        custom_id = _custom_id(fields)
        _claim(custom_id, number, first_lines)
        return _batch_line(number, custom_id, fields)
    except NotAnObjectError as error:
        if error.custom_id is not None:
            first_lines.first(_digest(error.custom_id), number)
        return _bad(number, error.custom_id, "invalid_json_line", str(error))
    except _BadFieldError as error:
        return _bad(number, custom_id, error.code, str(error))
    except InvalidRequestError as error:
        return _bad(number, custom_id, error.code, f"body.{error}")
    except RecursionError:
        return _bad(number, custom_id, "invalid_request", "nested too deeply; flatten it")


def _batch_line(number: int, custom_id: str, fields: dict[str, Any]) -> BatchLine:
    kind = _kind(fields)
    body = fields.get("body")
    if not isinstance(body, dict):
        raise _BadFieldError("invalid_request", "body must be an object with the request's parameters")
    parameters = cast("dict[str, Any]", body)
    return BatchLine(
        number=number,
        custom_id=custom_id,
        kind=kind,
        model=parse_model(parameters),
        request=parse_body(parameters, kind),
    )


def _custom_id(fields: dict[str, Any]) -> str:
    value = fields.get("custom_id")
    if value is None:
        raise _BadFieldError("missing_custom_id", "custom_id is missing; give each line its own")
    if not isinstance(value, str) or not value:
        raise _BadFieldError("missing_custom_id", f"custom_id must be a non-empty string, not {value!r}")
    return value


def _claim(custom_id: str, number: int, first_lines: KeyBook) -> None:
    first = first_lines.first(_digest(custom_id), number)
    if first != number:
        raise _BadFieldError(
            "duplicate_custom_id",
            f"custom_id {_clip(custom_id, 100)!r} was already used on line {first}; give each line its own",
        )


def _kind(fields: dict[str, Any]) -> RequestKind:
    method, url = fields.get("method"), fields.get("url")
    if method is not None and method != "POST":
        raise _BadFieldError("invalid_method", f"method must be POST, not {method!r}")
    kind = URLS.get(url) if isinstance(url, str) else None
    if kind is None:
        raise _BadFieldError("invalid_url", f"url must be one of {', '.join(URLS)}, not {url!r}")
    return kind


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


def _bad(number: int, custom_id: str | None, code: str, message: str) -> BadLine:
    # A message quotes what it found, which may be megabytes.
    return BadLine(number=number, custom_id=custom_id, code=code, message=_clip(message, _MESSAGE_LIMIT))


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"

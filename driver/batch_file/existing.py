"""What an output file of an earlier run already holds, so that a second run does only what is missing.

A request is known by its custom_id, a bad line by its number as well: the second line with a custom_id
must not hide the answer to the first. A line that a kill tore in two can only be the last one.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from broker.errors import ConfigurationError
from driver.batch_file.items import BadLine, BatchLine
from driver.batch_file.key_book import KeyBook
from driver.batch_file.lines import numbered_lines
from driver.batch_file.writing import BAD_LINE_ID_PREFIX, ID_PREFIX

_MAX_LINE_BYTES = 1 << 28  # a million tokens, escaped, are less
_LINE_START = f'{{"id":"{ID_PREFIX}'.encode()


class Existing(msgspec.Struct, frozen=True, kw_only=True):
    """An output file's content: the keys of its lines, how many of them failed, where it is whole."""

    keys: frozenset[bytes] | KeyBook = frozenset()
    failed: int = 0
    whole_bytes: int = 0  # what follows them is a torn line
    ends_line: bool = True  # false where only the last newline is missing


class _WrittenLine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str | None
    response: msgspec.Raw
    error: msgspec.Raw


def key_of(item: BatchLine | BadLine) -> bytes:
    """The key under which the answer to an input line is found again."""
    if isinstance(item, BatchLine):
        return _digest(item.custom_id)
    return _bad_line_key(f"{BAD_LINE_ID_PREFIX}{item.number}", item.custom_id)


def read_existing(path: Path) -> Existing:
    """Read the output file at `path`, without changing it. The keys are on disk, and must be closed.

    Raises:
        ConfigurationError: a line is not batch output; the message names the file and the line.
        OSError: the file cannot be read.
    """
    keys = KeyBook()
    try:
        return _read(path, keys)
    except BaseException:
        keys.close()
        raise


def _read(path: Path, keys: KeyBook) -> Existing:
    failed = 0
    whole_bytes = 0
    ends_line = True
    for line, written in _whole_lines(path):
        whole_bytes += len(line)
        ends_line = line.endswith(b"\n")
        if written is not None:
            keys.first(_key_of_written(written), 0)
            failed += bytes(written.error) != b"null"
    return Existing(keys=keys, failed=failed, whole_bytes=whole_bytes, ends_line=ends_line)


def _whole_lines(path: Path) -> Iterator[tuple[bytes, _WrittenLine | None]]:
    """The lines before a torn one, with what they say; a blank one says None."""
    with path.open("rb") as file:
        for number, line in numbered_lines(file, _MAX_LINE_BYTES):
            written = _decode(line) if line else None
            if line and (written or not line.strip()):
                yield line, written
            elif not line or not _is_torn(line):
                raise ConfigurationError(
                    f"{path}, line {number}, is not batch output, so nothing was written to the"
                    " file; are the input and the output file swapped?"
                )


def _decode(line: bytes) -> _WrittenLine | None:
    try:
        written = msgspec.json.decode(line, type=_WrittenLine)
    except (ValueError, RecursionError):  # also msgspec's own errors
        return None
    return written if written.id.startswith(ID_PREFIX) else None


def _is_torn(line: bytes) -> bool:
    begun = line.startswith(_LINE_START) or _LINE_START.startswith(line)
    return begun and not line.endswith(b"\n")


def _key_of_written(written: _WrittenLine) -> bytes:
    if written.id.startswith(BAD_LINE_ID_PREFIX) or written.custom_id is None:
        return _bad_line_key(written.id, written.custom_id)
    return _digest(written.custom_id)


def _bad_line_key(line_id: str, custom_id: str | None) -> bytes:
    # `person` keeps the two kinds of key apart, whatever a custom_id looks like.
    return _digest(f"{line_id} {custom_id or ''}", person=b"bad line")


def _digest(text: str, person: bytes = b"") -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16, person=person).digest()

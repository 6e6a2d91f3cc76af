"""Numbered lines of a binary file, of which a longer one than the limit is never held in memory."""

import itertools
from collections.abc import Iterator
from typing import BinaryIO

MAX_LINE_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def numbered_lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its number, from 1, and its line end; None in place of one above `limit` bytes."""
    for number in itertools.count(1):
        line = file.readline(limit + 1)
        if not line:
            return
        if len(line) > limit and not line.endswith(b"\n"):
            _skip_to_line_end(file)
            yield number, None
        else:
            yield number, line


def _skip_to_line_end(file: BinaryIO) -> None:
    while chunk := file.readline(_CHUNK_BYTES):
        if chunk.endswith(b"\n"):
            return

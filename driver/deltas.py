"""A job's text as it comes: puts together what is known of each request, so that every character is given once."""

import msgspec

from broker.deltas import TextDelta
from broker.messages import Output


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New text of the request `index`, which begins behind the first `offset` characters of its text.

    The last one of a request has its `output`, and what of its text was not given before, which may be nothing.

    To append is enough, but for one case: the output's text may not be what was given, as the request failed, or was
    generated again on other hardware, with other roundings. Then the last offset lies within what was given, and from
    there on that does not hold. `text[: delta.offset] + delta.text` is right in this case too.
    """

    index: int
    offset: int = 0
    text: str = ""
    output: Output | None = None


class TextMerge:
    """What readers of a job have been given of each request that is not over."""

    def __init__(self) -> None:
        self._given: dict[int, str] = {}
        self._doubted: set[int] = set()
        self._over: set[int] = set()

    def add(self, item: TextDelta | Output) -> Delta | None:
        """What is new in a piece of text, which may be doubled, late or from another worker, or in an output."""
        if item.index in self._over:
            return None
        return self._last(item) if isinstance(item, Output) else self._next(item)

    def _next(self, piece: TextDelta) -> Delta | None:
        given = self._given.get(piece.index, "")
        overlap = given[piece.offset : piece.end]
        if not piece.text.startswith(overlap):
            self._doubted.add(piece.index)  # it is generated again, otherwise: the output will tell
        if piece.index in self._doubted or not piece.offset <= len(given) < piece.end:
            return None
        new = piece.text[len(overlap) :]
        self._given[piece.index] = given + new
        return Delta(index=piece.index, offset=len(given), text=new)

    def _last(self, output: Output) -> Delta:
        given = self._given.pop(output.index, "")
        self._doubted.discard(output.index)
        self._over.add(output.index)
        offset = _common(given, output.text)
        return Delta(index=output.index, offset=offset, text=output.text[offset:], output=output)


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other))

"""Text as tokens arrive: whole characters only, and the place where a stop string ends it."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"  # what a tokenizer gives for the bytes of a character that is not yet whole


class GrowingText:
    """The text of a token sequence that grows by one token at a time.

    Each token costs the decoding of a few, not of all: only those since the last whole character, behind a few
    before them that some tokenizers need to see (a leading space depends on what comes before it).
    """

    def __init__(self, decode: Decode) -> None:
        self.text = ""
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token; return the text that it completed, often empty in the middle of a character."""
        self._pending.append(token_id)
        before = self._decode(self._context)
        after = self._decode(self._context + self._pending)
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        new = after[len(before) :]
        self._context, self._pending = self._pending, []
        self.text += new
        return new


class StopSearch:
    """Looks for stop strings in the tokens of one request, each token once.

    `kept` are the tokens up to and with the one that completed a stop string, or all of them so far. A stop string
    that is complete before there are `min_tokens` tokens does not count.
    """

    def __init__(self, stop: Sequence[str], decode: Decode, *, min_tokens: int = 0) -> None:
        self.found = False
        self.kept: list[int] = []
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._after = 0  # a stop string that counts ends behind this place in the text
        self._decode = decode
        self._growing = GrowingText(decode)

    @property
    def grown(self) -> str:
        """The text of the kept tokens, as it came."""
        return self._growing.text

    def push(self, token_ids: Sequence[int]) -> bool:
        """Take all tokens of the request so far; say whether a stop string is among their text."""
        for token_id in token_ids[len(self.kept) :]:
            if self.found:
                break
            self.take(token_id)
        return self.found

    def take(self, token_id: int) -> None:
        """Take the next token."""
        self.kept.append(token_id)
        new = self._growing.push(token_id)
        if not new or len(self.kept) < self._min_tokens:
            return
        after = len(self.grown) - len(new)
        self.found = self._place(self.grown, after) is not None
        if self.found and self._min_tokens:
            self._after = after

    def text(self, *, with_stop: bool = False) -> str:
        """The text of the kept tokens, without what follows the first stop string, nor that itself unless wanted."""
        whole = whole_text(self._decode, self.kept)
        if not self.found:
            return whole
        # A tokenizer that cleans up spaces may read the whole otherwise than its parts.
        cuts = (self._cut(text, with_stop=with_stop) for text in (whole, self.grown))
        return next((cut for cut in cuts if cut is not None), whole)

    def settled(self, *, with_stop: bool = False) -> str:
        """The text that no further token can change: without what may be the beginning of a stop string."""
        if self.found:
            return self._cut(self.grown, with_stop=with_stop) or ""
        return self.grown if with_stop else self.grown[: len(self.grown) - self._held_back()]

    def _held_back(self) -> int:
        """How many characters at the end of the text may begin a stop string."""
        most = max((len(item) for item in self._stop), default=1) - 1
        end = self.grown[-most:] if most else ""
        return next((len(end) - at for at in range(len(end)) if self._may_begin_with(end[at:])), 0)

    def _may_begin_with(self, text: str) -> bool:
        return any(item.startswith(text) for item in self._stop)

    def _cut(self, text: str, *, with_stop: bool) -> str | None:
        place = self._place(text, self._after)
        return None if place is None else text[: place[1] if with_stop else place[0]]

    def _place(self, text: str, after: int) -> tuple[int, int] | None:
        """Begin and end of the first stop string in `text` that ends behind `after`; of several, the shortest."""
        found = ((text.find(item, max(0, after - len(item) + 1)), len(item)) for item in self._stop)
        return min(((at, at + length) for at, length in found if at >= 0), default=None)


def whole_text(decode: Decode, token_ids: Sequence[int]) -> str:
    """The text of tokens, without the beginning of a character whose rest was not generated.

    A replacement character that the model wrote itself at the very end goes with it.
    """
    return decode(token_ids).rstrip(_INCOMPLETE)

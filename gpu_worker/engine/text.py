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

    `kept` are the tokens up to and with the one that completed a stop string, or all of them so far. One that is
    complete before there are `min_tokens` tokens does not count.
    """

    def __init__(self, stop: Sequence[str], decode: Decode, *, min_tokens: int = 0) -> None:
        self.found = False
        self.kept: list[int] = []
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._start = 0  # where in the text a stop string may begin that counts
        self._reach = max((len(item) for item in stop), default=1) - 1
        self._decode = decode
        self._growing = GrowingText(decode)

    def push(self, token_ids: Sequence[int]) -> bool:
        """Take all tokens of the request so far; say whether a stop string is among their text."""
        for token_id in token_ids[len(self.kept) :]:
            if self.found:
                break
            self.kept.append(token_id)
            new = self._growing.push(token_id)
            self.found = bool(new) and len(self.kept) >= self._min_tokens and self._completed_by(new)
        return self.found

    def text(self, *, with_stop: bool = False) -> str:
        """The text of the kept tokens, without what follows the first stop string, nor that itself unless wanted."""
        whole = whole_text(self._decode, self.kept)
        if not self.found:
            return whole
        # A tokenizer that cleans up spaces may read the whole otherwise than its parts.
        cuts = (self._cut(text, with_stop=with_stop) for text in (whole, self._growing.text))
        return next((cut for cut in cuts if cut is not None), whole)

    def _completed_by(self, new: str) -> bool:
        start = max(0, len(self._growing.text) - len(new) - self._reach)
        if first_stop(self._growing.text, self._stop, start) < 0:
            return False
        self._start = start if self._min_tokens else 0
        return True

    def _cut(self, text: str, *, with_stop: bool) -> str | None:
        at = first_stop(text, self._stop, self._start)
        if at < 0:
            return None
        ends = (at + len(item) for item in self._stop if text.startswith(item, at))
        return text[: min(ends) if with_stop else at]


def first_stop(text: str, stop: Sequence[str], start: int = 0) -> int:
    """Where the first of the stop strings begins in `text` from `start` on, or -1."""
    places = [at for at in (text.find(item, start) for item in stop) if at >= 0]
    return min(places, default=-1)


def whole_text(decode: Decode, token_ids: Sequence[int]) -> str:
    """The text of tokens, without the beginning of a character whose rest was not generated.

    A replacement character that the model wrote itself at the very end goes with it.
    """
    return decode(token_ids).rstrip(_INCOMPLETE)

"""The text of a request that streams, as far as it can no longer change.

It never holds a part of a character, what may be the beginning of a stop string, or an end token. Whatever the number
of tokens that it has seen, it is a beginning of the text that the request ends with, also of the one that another
worker makes of the same tokens.
"""

from collections.abc import Collection, Sequence

from broker.parameters import SamplingParams
from gpu_worker.engine.text import Decode, StopSearch


class SettledText:
    """Grows with the tokens of one request, each looked at once. `opening` is the echoed prompt, or empty."""

    def __init__(self, params: SamplingParams, ends: Collection[int], decode: Decode, *, opening: str = "") -> None:
        self._search = StopSearch(params.stop, decode, min_tokens=params.min_tokens)
        self._with_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens
        self._ends = ends
        self._opening = opening
        self._taken = 0
        self._over = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Take all tokens of the request so far; return the text that no further token can change."""
        for place in range(self._taken, min(len(token_ids), self._max_tokens)):
            if self._over:
                break
            self._take(token_ids[place])
        return self._opening + self._search.settled(with_stop=self._with_stop)

    def final(self, token_ids: Sequence[int], text: str) -> str:
        """The text that a request with these tokens ends with, where `text` is that of all tokens read together.

        Some tokenizers read the whole otherwise than its parts, when they clean up spaces or meet broken characters.
        What has been read by others cannot be taken back: then the parts count.
        """
        settled = self.push(token_ids)
        if text.startswith(settled):
            return text
        return settled if self._search.found else self._opening + self._search.grown

    def _take(self, token_id: int) -> None:
        ends = token_id in self._ends and self._taken >= self._min_tokens
        self._taken += 1
        if not ends or self._with_stop:
            self._search.take(token_id)
        self._over = ends or self._search.found

"""A request in the simulated engine: its made-up tokens, and when each of them is due."""

from dataclasses import dataclass

from gpu_worker.engine.pseudo_text import next_token
from gpu_worker.engine.stepwise_row import Row


@dataclass(slots=True, kw_only=True, eq=False)
class Held(Row):
    """A row whose tokens follow from `key`, and come in time."""

    key: bytes
    due_s: float = 0.0  # when its next token comes

    def grow(self, now_s: float, interval_s: float) -> int:
        """Take the tokens that are due, at most one where time is free; returns how many."""
        before = len(self.tokens)
        while self.due_s <= now_s and not self.over:
            self.tokens.append(self._next())
            self.due_s += interval_s
            if not interval_s:
                break
        return len(self.tokens) - before

    def _next(self) -> int:
        place = len(self.tokens)
        held_back = self.ending.tokens if place < self.request.params.min_tokens else ()
        return next_token(self.key, place, without=held_back)

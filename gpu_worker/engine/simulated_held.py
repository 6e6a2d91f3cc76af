"""A request in the simulated engine: its made-up tokens, and when each of them is due."""

from dataclasses import dataclass

from broker.messages import Request
from gpu_worker.engine.base import Completion
from gpu_worker.engine.completions import Ending, completion_of
from gpu_worker.engine.pseudo_text import decode, next_token
from gpu_worker.engine.settled import SettledText


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A request in hand, waiting or running."""

    request_id: str
    request: Request
    prompt_ids: tuple[int, ...]
    key: bytes
    tokens: list[int]
    ending: Ending
    settled: SettledText | None
    due_s: float = 0.0  # when its next token comes
    begun: bool = False  # it has had a slot

    @property
    def over(self) -> bool:
        """Whether its tokens end it."""
        return self.ending.reached(self.tokens)

    @property
    def now_tokens(self) -> int:
        """What it occupies, prompt and answer together."""
        return len(self.prompt_ids) + len(self.tokens)

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy, prompt and answer together."""
        return len(self.prompt_ids) + self.request.params.max_tokens

    def grow(self, now_s: float, interval_s: float) -> int:
        """Take the tokens that are due, at most one where time is free; returns how many."""
        before = len(self.tokens)
        while self.due_s <= now_s and not self.over:
            self.tokens.append(self._next())
            self.due_s += interval_s
            if not interval_s:
                break
        return len(self.tokens) - before

    def completion(self) -> Completion:
        """What it has so far, as an end."""
        return completion_of(
            self.request_id,
            self.request,
            prompt_ids=self.prompt_ids,
            tokens=tuple(self.tokens),
            ending=self.ending,
            decode=decode,
            settled=self.settled,
        )

    def _next(self) -> int:
        place = len(self.tokens)
        held_back = self.ending.tokens if place < self.request.params.min_tokens else ()
        return next_token(self.key, place, without=held_back)

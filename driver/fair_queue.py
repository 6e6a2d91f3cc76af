"""Fair queueing: everybody has a tag, what it was given over its weight, and the lowest tag is next. Pure.

A newcomer starts at the present virtual time, so that it neither waits behind all that was served before it nor makes
up for it.
"""

from heapq import heappop, heappush

# Nobody is ahead of, or behind, its fair share by more tokens (over its weight) than this. What it could not use, as
# no worker served its model, it does not get back later at the cost of everybody else.
MEMORY_TOKENS = 65_536.0
NEWCOMER_TOKENS = 1.0


class FairQueue:
    """Members that share something by weight. Who left while ahead of its share is remembered until it is not."""

    __slots__ = ("_ahead", "_members", "_newcomers", "_tags", "_time")

    def __init__(self) -> None:
        self._time = 0.0
        self._tags: dict[str, float] = {}
        self._newcomers: set[str] = set()
        self._members: dict[str, int] = {}  # how often each has entered
        self._ahead: list[tuple[float, str]] = []  # who is no member, by tag

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, name: str) -> None:
        """Somebody wants something; a member that enters again must leave as often."""
        self._members[name] = self._members.get(name, 0) + 1
        if name not in self._tags:
            self._tags[name] = self._time
            self._newcomers.add(name)

    def leave(self, name: str) -> None:
        """A member wants nothing more."""
        if self._members[name] > 1:
            self._members[name] -= 1
            return
        del self._members[name]
        self._newcomers.discard(name)
        self._remember(name)

    def tag(self, name: str) -> float:
        """How much a member had, over its weight; the lowest is next. Of equals, one that had nothing yet is lower."""
        tag = self._tags.get(name)
        if tag is None:
            return self._time - NEWCOMER_TOKENS
        return tag - (NEWCOMER_TOKENS if name in self._newcomers else 0.0)

    def charge(self, name: str, tokens: float, weight: float, all_weights: float) -> None:
        """Somebody was given so much, while members of `all_weights` together wanted some."""
        self._newcomers.discard(name)
        before = max(self._tags.get(name, self._time), self._time - MEMORY_TOKENS)
        self._time += tokens / all_weights
        self._tags[name] = min(before + tokens / weight, self._time + MEMORY_TOKENS)
        if name not in self._members:
            self._remember(name)
        self._forget()

    def _remember(self, name: str) -> None:
        heappush(self._ahead, (self._tags[name], name))
        self._forget()

    def _forget(self) -> None:
        while self._ahead and self._ahead[0][0] <= self._time:
            _, name = heappop(self._ahead)
            if name not in self._members and self._tags.get(name, self._time) <= self._time:
                self._tags.pop(name, None)

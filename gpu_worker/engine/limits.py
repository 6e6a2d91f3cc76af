"""How large a step may be, learned from memory that ran out. Pure: a count of steps is the only clock.

A shortage halves what the failing step held. Quiet steps grow it again, each time at most halfway to the size that
failed, which is thus approached and not tried again. Only after a long quiet does that size move up a little, and ever
more slowly when it fails once more.
"""

import msgspec

LEAST_STEP_TOKENS = 16
QUIET_STEPS = 256  # until a limit grows
_PATIENCE = 8  # quiet times without growth, until what failed once may be tried again
_MOST_PATIENCE = 256


class StepSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one step holds: requests, their prompt and new tokens, and the first request's key."""

    rows: int = 0
    tokens: int = 0
    first: str = ""


class Bound:
    """One limit: its value `now`, and the least value that is known to fail."""

    def __init__(self, most: int, least: int = 1) -> None:
        self.most = most
        self.least = min(least, most)
        self.now = most
        self._failed: int | None = None

    @property
    def at_least(self) -> bool:
        """Whether it cannot shrink."""
        return self.now <= self.least

    def shrink(self, failed: int) -> None:
        """Stay below `failed`, a size that did not fit: at its half."""
        failed = min(failed or self.now, self.now)
        self.now = max(self.least, failed // 2)
        self._failed = max(failed, self.now + 1)

    @property
    def can_double(self) -> bool:
        """Whether twice as much is allowed and not known to fail."""
        return 2 * self.now <= (self.most if self._failed is None else self._failed - 1)

    def shrink_to(self, fitting: int) -> None:
        """Go down to `fitting`; the value until now has failed."""
        self._failed, self.now = self.now, max(self.least, min(fitting, self.now))

    def grow(self) -> bool:
        """Double, but go no further than halfway to what failed. Returns whether there was room."""
        halfway = self.most if self._failed is None else (self.now + self._failed) // 2
        before, self.now = self.now, max(self.now, min(self.most, 2 * self.now, halfway))
        return self.now > before

    def relax(self) -> bool:
        """Let the size that failed be a quarter larger. Returns whether there is such a size."""
        if self._failed is None:
            return False
        higher = self._failed + max(1, self._failed // 4)
        self._failed = higher if higher <= self.most else None
        return True

    def set_most(self, most: int) -> None:
        """Another end of the growth; what is above it shrinks with it."""
        at_most = self.now == self.most and self._failed is None
        self.most = most
        self.now = most if at_most else min(self.now, most)

    def copy(self) -> "Bound":
        """The same, to go back to."""
        other = Bound(self.most, self.least)
        other.now, other._failed = self.now, self._failed
        return other


class Limits:
    """Requests and tokens of one step. Calls bring the number of steps so far; those since the last call were quiet."""

    def __init__(self, *, slots: int, step_tokens: int, quiet_steps: int = QUIET_STEPS) -> None:
        self.slots = Bound(slots)
        self.step_tokens = Bound(step_tokens, LEAST_STEP_TOKENS)
        self._quiet_steps = quiet_steps
        self._since = 0
        self._calm = 0
        self._patience = _PATIENCE
        self._relaxed = False
        self._before: tuple[Bound, Bound] | None = None  # as it was when memory began to run out

    def shrink(self, used: StepSize, steps: int) -> bool:
        """Memory ran out in a step. False when it held one request with as few tokens as can be: nothing can shrink."""
        self._since, self._calm = steps, 0
        self._before = self._before or (self.slots.copy(), self.step_tokens.copy())
        if self._relaxed:
            self._patience, self._relaxed = min(2 * self._patience, _MOST_PATIENCE), False
        rows = used.rows or self.slots.now
        tokens = min(used.tokens or self.step_tokens.now, self.step_tokens.now)
        if rows <= 1 and tokens <= self.step_tokens.least:
            return False
        if rows > 1:
            self.slots.shrink(rows)
        self.step_tokens.shrink(tokens)
        return True

    def forgive(self) -> None:
        """One request alone was too much: what the shortage said holds for no other. All is as before it."""
        if self._before is not None:
            self.slots, self.step_tokens = self._before
            self._before = None

    def settle(self) -> None:
        """Those that memory ran out with are through: what it taught holds."""
        self._before = None

    def quiet(self, steps: int) -> bool:
        """Whether so many steps went well that something may grow; the count starts anew if so."""
        if steps - self._since < self._quiet_steps:
            return False
        self._since = steps
        return True

    def grow(self) -> bool:
        """Grow after a quiet time. Returns whether anything changed."""
        slots, tokens = self.slots.grow(), self.step_tokens.grow()
        if slots or tokens:
            self._calm = 0
            return True
        self._calm += 1
        if self._calm >= self._patience:
            self._calm = 0
            relaxed = self.slots.relax(), self.step_tokens.relax()
            self._relaxed = self._relaxed or any(relaxed)
        return False

"""Memory of the simulated engine that can run out: seen from outside, it behaves as the real engine's does."""

from collections.abc import Sequence

from gpu_worker.engine.limits import QUIET_STEPS, Limits, StepSize


class SimulatedMemory:
    """Holds `tokens` of all that runs together, 0 for any number; `slots` shrink when that is not enough."""

    def __init__(self, tokens: int, slots: int, quiet_steps: int = QUIET_STEPS) -> None:
        self._tokens = tokens
        self._limits = Limits(slots=slots, step_tokens=1, quiet_steps=quiet_steps)

    @property
    def slots(self) -> int:
        """Requests that may run together now."""
        return self._limits.slots.now

    def resize(self, slots: int) -> None:
        """Another number of slots to have while memory is not short."""
        self._limits.slots.set_most(slots)

    def kept(self, held_tokens: Sequence[int], steps: int) -> int:
        """How many of those that run, the first of them, fit and may go on; 0 says that the only one never fits."""
        if not self._tokens or sum(held_tokens) <= self._tokens:
            if self._limits.quiet(steps):
                self._limits.settle()
                self._limits.grow()
            return len(held_tokens)
        if not self._limits.shrink(StepSize(rows=len(held_tokens), tokens=1), steps):
            self._limits.forgive()
            return 0
        return self.slots

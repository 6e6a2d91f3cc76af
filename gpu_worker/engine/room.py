"""The memory that generation gets: loops made to fit into it, smaller after a shortage, slowly larger again.

A step that does not fit makes the steps smaller, in the same loop's sizes. What is made with a loop, its KV cache above
all, shrinks when not even that fits, or when one request needs the room alone; it grows by doubling, or when idle.
"""

import gc
import logging
import math
from collections.abc import Callable

import msgspec

from gpu_worker.engine.breakage import Breakage, breakage_of, drop_frames
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.limits import Bound, Limits, StepSize
from gpu_worker.engine.loop import Loop
from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.offload import free_cache

_log = logging.getLogger(__name__)

_LEAST_CACHE_PERCENT = 3

MakeLoop = Callable[[LoopOptions], Loop]


class Room:
    """Makes loops, and knows how much they may hold."""

    def __init__(self, options: LoopOptions, make: MakeLoop) -> None:
        self.refused = ""  # why the sizes of the last `resize` could not be had
        self.full_kv_tokens = 0  # of the KV cache while memory is not short
        self._options = options
        self._make = make
        self._cache = _full_cache()
        self._cache_before: Bound | None = None  # before one request was given its place
        self._before_resize: tuple[LoopOptions, Bound] | None = None
        self._limits: Limits | None = None

    @property
    def limits(self) -> Limits:
        """Of the present loop's steps."""
        assert self._limits is not None, "known with the first loop"
        return self._limits

    def make_loop(self, *, graphs: bool) -> Loop:
        """A started loop, with as much KV cache as there is memory for.

        Raises:
            EngineDeadError: not even a small one can be made, or the device is lost.
        """
        while True:
            options = msgspec.structs.replace(self._options.with_cache(self._cache.now), graphs=graphs)
            try:
                loop = self._make(options)
            except Exception as error:
                self._make_do(error)
                drop_frames(error)
            else:
                self._before_resize = None
                self._fit(loop)
                return loop
            gc.collect()
            free_cache()

    def pad(self) -> bool:
        """Let the next loop be one without paged cache; False where they are already."""
        changed = not self._options.padded
        self._options = msgspec.structs.replace(self._options, padded=True)
        return changed

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Let the next loop have these sizes, 0 for as before; where that cannot be, it is as it was, and `refused`."""
        self.refused = ""
        self._before_resize = self._options, self._cache.copy()
        self._options = self._options.resized(slots=slots, kv_tokens=kv_tokens)
        if kv_tokens:
            self._cache, self._cache_before = _full_cache(), None

    def shrink(self, used: StepSize, needed_tokens: int, loop: Loop, steps: int) -> bool:
        """Memory ran out in a step. False when its one request cannot be given more of the memory.

        It is given all of the KV cache but the `needed_tokens`, which the largest request in hand may need.
        """
        if self.limits.shrink(used, steps):
            return True
        least = math.ceil(self._cache.now * needed_tokens / loop.kv_tokens) + 1
        if least >= self._cache.now or self._cache.at_least:
            return False
        self._cache_before = self._cache_before or self._cache.copy()
        self._cache.shrink_to(least)
        return True

    def forgive(self) -> None:
        """That request was too large for the device: what it taught holds for no other."""
        self.limits.forgive()
        if self._cache_before is not None:
            self._cache, self._cache_before = self._cache_before, None

    def settle(self) -> None:
        """Those that memory ran out with are through: what it taught holds."""
        self.limits.settle()
        self._cache_before = None

    def grow(self, loop: Loop, steps: int, *, idle: bool) -> bool:
        """Grow after a quiet time; called often. True when a new loop must be made for it."""
        if not self.limits.quiet(steps):
            return False
        if self.limits.grow():
            self._limit(loop)
        # A new loop reads all texts in hand again, so that it must be worth it.
        return (idle or self._cache.can_double) and self._cache.grow()

    def _make_do(self, error: Exception) -> None:
        """Take back what was wished for, or else some of the KV cache."""
        if self._before_resize is not None:
            self.refused = str(error)
            (self._options, self._cache), self._before_resize = self._before_resize, None
        elif breakage_of(error) is not Breakage.MEMORY or self._cache.at_least:
            raise EngineDeadError(f"generation cannot be started: {error}") from error
        else:
            _log.warning("memory is short for a KV cache of %d %%: %s", self._cache.now, error)
            self._cache.shrink(self._cache.now)

    def _fit(self, loop: Loop) -> None:
        if self._limits is None:
            self._limits = Limits(slots=loop.slots, step_tokens=loop.step_tokens, quiet_steps=self._options.quiet_steps)
        self._limits.slots.set_most(loop.slots)
        self._limits.step_tokens.set_most(loop.step_tokens)
        if self._cache.now == self._cache.most or not self.full_kv_tokens:
            self.full_kv_tokens = loop.kv_tokens
        self._limit(loop)

    def _limit(self, loop: Loop) -> None:
        loop.limit(slots=self.limits.slots.now, step_tokens=self.limits.step_tokens.now)


def _full_cache() -> Bound:
    return Bound(100, _LEAST_CACHE_PERCENT)  # percent of what was asked for

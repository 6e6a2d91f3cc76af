"""Whether a loop is one with CUDA graphs, or one for requests that need Python in every step.

Penalties and log probabilities are Python in every step, which CUDA graphs leave out: they need a loop without. That
one is left again when a request without such wishes finds it idle, and it has not been needed for a while.
"""

import math
import time
from collections.abc import Iterable

from gpu_worker.engine.rows import RowSampling

_LINGER_S = 60.0  # a change of loop costs the capture of the graphs, which takes seconds


class Graphs:
    """What the present loop is; `on` says that it may have graphs."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._left_out_s = -math.inf  # when a request last needed that there are none

    def choose(self, rows: Iterable[RowSampling]) -> bool:
        """Decide for a new loop by the requests in hand."""
        self.on = not any(row.in_python for row in rows)
        return self.on

    def suit(self, row: RowSampling, *, eager: bool, idle: bool) -> bool:
        """Whether the loop, which runs `eager` or not, can run a request, and is not slower for it than it need be."""
        if eager == row.in_python:
            return True
        if row.in_python:
            return False
        return self.on or not idle or time.monotonic() < self._left_out_s + _LINGER_S

    def note(self, row: RowSampling) -> None:
        """A request has come."""
        if row.in_python:
            self._left_out_s = time.monotonic()

"""Time as a dependency, so that what waits or expires can be tested without waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only move forward, and a way to wait."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

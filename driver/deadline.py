"""The moment until which somebody waits, from a number of seconds; None is no limit."""

import math
import time
from typing import Any

from broker.errors import InvalidRequestError
from broker.values import shown


class Deadline:
    """`timeout_s` seconds from now.

    Raises:
        InvalidRequestError: `timeout_s` is no number.
    """

    def __init__(self, timeout_s: float | None) -> None:
        given: Any = timeout_s
        if given is not None and (not isinstance(given, (int, float)) or math.isnan(given)):
            raise InvalidRequestError(f"timeout must be a number of seconds, not {shown(given)}")
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """Seconds that are left, not below 0; None for no limit."""
        return None if self._end_s is None else max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.left_s == 0.0

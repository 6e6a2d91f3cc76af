"""What is reported of several measurements."""

from collections.abc import Sequence
from statistics import median

import msgspec


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Median and spread."""

    median: float
    low: float
    high: float
    count: int


def summarise(values: Sequence[float]) -> Summary:
    """The summary of at least one measurement."""
    return Summary(median=median(values), low=min(values), high=max(values), count=len(values))

"""Bounds on the number of workers, as people write them: MIN,MAX."""

import msgspec

from broker.errors import InvalidRequestError

WORKER_LIMIT = 10_000


def bounds_problem(least: int, most: int) -> str:
    """What is wrong with bounds on the number of workers; '' for nothing."""
    if not 0 <= least <= most:
        return f"from {least} to {most} workers cannot be: give 0 <= MIN <= MAX"
    return f"{most} workers are more than {WORKER_LIMIT}" if most > WORKER_LIMIT else ""


class Bounds(msgspec.Struct, frozen=True):
    """The fewest and the most workers there may be."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least},{self.most}"


def parse_bounds(text: str) -> Bounds:
    """Bounds from "MIN,MAX".

    Raises:
        InvalidRequestError: it is not that, or cannot be.
    """
    least, comma, most = (part.strip() for part in text.partition(","))
    if not (comma and _is_number(least) and _is_number(most)):
        raise InvalidRequestError(f"{text!r} is not MIN,MAX: two whole numbers, such as 1,8")
    bounds = Bounds(int(least), int(most))
    if problem := bounds_problem(bounds.least, bounds.most):
        raise InvalidRequestError(problem)
    return bounds


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9

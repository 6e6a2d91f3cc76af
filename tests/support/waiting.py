"""Waiting for a state, never for a time: the only place in the tests that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

StateT = TypeVar("StateT")

POLL_S = 0.02


def wait_until(
    predicate: Callable[[], StateT], timeout: float = 60.0, *, what: str | Callable[[], str] = "the state waited for"
) -> StateT:
    """The first truthy answer of `predicate`; fails, naming `what`, when there is none within `timeout` seconds."""
    deadline_s = time.monotonic() + timeout
    while not (state := predicate()):
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {timeout:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(POLL_S)
    return state


def stays_true(predicate: Callable[[], object], seconds: float) -> bool:
    """Whether `predicate` is true at every look for so many seconds."""
    deadline_s = time.monotonic() + seconds
    while predicate():
        if time.monotonic() >= deadline_s:
            return True
        time.sleep(POLL_S)
    return False

"""Waits for a condition instead of for a time."""

import time

POLL_S = 0.005


def wait_until(predicate, timeout_s=10.0):
    """The predicate's first true value; a failure names the predicate when none comes in time."""
    give_up_s = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() >= give_up_s:
            raise AssertionError(f"not within {timeout_s:g} s: {predicate}")
        time.sleep(POLL_S)
    return value

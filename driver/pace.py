"""When a leader looks again: as soon as something has changed, and yet not so often that it does nothing else."""

from broker.bell import Bell
from broker.clock import Clock
from broker.queries import Queries

MAX_REST_S = 0.01  # after a tick


class Pace:
    """Waits between two ticks."""

    def __init__(self, queries: Queries, bell: Bell, clock: Clock, interval_s: float) -> None:
        """Without a change the next tick comes after `interval_s`."""
        self._queries = queries
        self._bell = bell
        self._clock = clock
        self._interval_s = interval_s

    def wait(self, began_s: float, *, is_full: bool) -> bool:
        """Wait behind a tick that began so long ago until something has changed. False when nothing has.

        Where a worker is full, every output that it gives changes something: then rest for as long as the tick took,
        so that a busy driver does not do only this, and free places gather for a batch. Who comes to free workers does
        not wait, nor does who ranks before those that wait.
        """
        ended_s = self._clock.now_s()
        has_changed = self._queries.wait_for_change(self._interval_s)
        rest_s = min(ended_s - began_s, MAX_REST_S) if is_full else 0.0
        if (left_s := ended_s + rest_s - self._clock.now_s()) > 0:
            self._bell.wait(left_s)
        if is_full:
            self._bell.forget()  # the tick sees it
        return has_changed

    def close(self) -> None:
        """Let the bell go."""
        self._bell.close()

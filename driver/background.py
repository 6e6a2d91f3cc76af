"""A loop in a thread of its own, which is asked to end and not waited for without an end: Redis may stand still."""

import threading
from collections.abc import Callable

PATIENCE_S = 5.0  # a call to a Redis that answers takes less
POLL_S = 0.2


class Background:
    """Runs a loop until it is asked to stop. What it does then must bear being cut off with its process."""

    def __init__(self, name: str, run: Callable[[], None], stop: Callable[[], None]) -> None:
        """`stop` makes `run` return; it may be called in a signal handler."""
        self._stop = stop
        self._thread = threading.Thread(target=run, name=f"stoker-{name}", daemon=True)
        # No Event: a signal handler would wait for ever for its lock if it came while `wait` holds it.
        self._is_asked = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is asked to end, or ends by itself."""
        while self._thread.is_alive() and not self._is_asked:
            self._thread.join(POLL_S)

    def stop(self) -> None:
        """Ask it to end. Safe in a signal handler, and to call twice."""
        self._is_asked = True
        self._stop()

    def join(self) -> bool:
        """Wait for its end, a few seconds at most. Whether it has ended."""
        if self._thread.is_alive():  # an interrupt may have kept it from its start
            self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

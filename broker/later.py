"""Something that is done after a while, unless the process has ended by then."""

import threading
from collections.abc import Callable


def call_later(seconds: float, call: Callable[[], object]) -> None:
    """Call it after so many seconds, from a thread that keeps no process alive."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()

"""Ctrl-C and SIGTERM as one clean way to end."""

import signal
import threading
from types import FrameType


def interrupt_on_sigterm() -> None:
    """Make SIGTERM end a command as Ctrl-C does, so that what it started is stopped in order."""

    def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, raise_interrupt)


def wait_for_stop() -> None:
    """Wait until Ctrl-C or SIGTERM."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopped.set())
    stopped.wait()

"""Ctrl-C and SIGTERM as one clean way to end."""

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupt_on_sigterm() -> None:
    """Make SIGTERM end a command as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _raise_interrupt)


def interrupt_once() -> None:
    """Make the first Ctrl-C or SIGTERM end a command; further ones do not disturb the stop of what it started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        ignore_interrupts()
        _raise_interrupt(number, frame)

    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)


def ignore_interrupts() -> None:
    """From now on this process ends in its own time."""
    for number in STOP_SIGNALS:
        # Not SIG_IGN, which a process started meanwhile would inherit.
        signal.signal(number, lambda _number, _frame: None)


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

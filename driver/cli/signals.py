"""Ctrl-C and SIGTERM as one clean way to end."""

import signal
import sys
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.02


def interrupt_for_certain() -> None:
    """Raise a `KeyboardInterrupt` anew that Python has dropped.

    It drops what is raised in a destructor or a callback, of which each import has one: the command would go on.
    """
    signal.signal(signal.SIGALRM, _interrupt_again)
    sys.unraisablehook = _look_at_dropped


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


def _look_at_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
    else:
        sys.__unraisablehook__(dropped)


def _interrupt_again(_number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code is _look_at_dropped.__code__:
        return  # what is raised there is dropped, too; the timer comes again
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

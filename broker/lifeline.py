"""A pipe by which a child process learns that its parent is gone, however the parent died.

The parent keeps the write end and the child watches the read end: the kernel closes the write end with the parent, so
no process outlives the one that started it, even after SIGKILL.
"""

import os
import select
import threading
from collections.abc import Callable, Mapping

VARIABLE = "STOKER_INTERNAL_LIFELINE_FD"


class Lifeline:
    """The parent's end. Close it, or die, and every child that watches ends."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the child must inherit (`pass_fds`)."""
        return (self._read_fd,)

    def environment(self) -> dict[str, str]:
        """What tells the child where to look."""
        return {VARIABLE: str(self._read_fd)}

    def close(self) -> None:
        """Cut the line. Safe to call twice."""
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1


def watch(environ: Mapping[str, str], on_lost: Callable[[], None]) -> None:
    """Call `on_lost` from a thread when the parent that holds the lifeline is gone; nothing where there is none."""
    value = environ.get(VARIABLE)
    if value is None:
        return
    fd = int(value)
    threading.Thread(target=_wait, args=(fd, on_lost), name="lifeline", daemon=True).start()


def _wait(fd: int, on_lost: Callable[[], None]) -> None:
    # Nothing is ever written: readable means that the other end is closed.
    select.select([fd], [], [])
    on_lost()

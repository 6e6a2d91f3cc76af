"""One file of batch output: whole lines appended, one run at a time, continued after a kill."""

import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.errors import ConfigurationError
from driver.batch_file.existing import Existing, read_existing
from driver.batch_file.key_book import KeyBook


class OutputFile:
    """Appends lines to `path`; `existing` is what the file held before.

    Opening cuts off a line that a kill tore in two, and changes nothing in a file that is not batch output.
    What is not a regular file (a pipe, /dev/stdout) is only written to.

    Raises:
        ConfigurationError: the file cannot be opened, is not batch output, or another run writes to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.existing = Existing()
        self._fd = _open(path)
        try:
            self.existing = self._take_over()
        except BaseException:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Write one whole line, with its newline, to the operating system.

        Raises:
            OSError: the disk is full or fails. The line may be torn; opening the file again repairs it.
        """
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Close the file and let other runs have it."""
        if isinstance(self.existing.keys, KeyBook):
            self.existing.keys.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _take_over(self) -> Existing:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return Existing()
        _lock(self._fd, self.path)
        existing = read_existing(self.path)
        os.ftruncate(self._fd, existing.whole_bytes)
        if not existing.ends_line:
            self.append(b"\n")
        return existing


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigurationError(f"cannot write to {path}: {error.strerror}") from error


def _lock(fd: int, path: Path) -> None:
    # Two runs that append to one file would each redo what the other does.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"another run is writing to {path}; wait for it, or name another output file"
        ) from error
    except OSError:
        return  # a file system without locks

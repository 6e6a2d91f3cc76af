"""A temporary folder that goes with its process, however that ends: what the killed have left goes at the next start.

The owner holds a lock on a file in its folder, and the kernel lets go of it with the process. A process id would not
do: another process may have it by now.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

LOCK = "owner"


class OwnFolder:
    """A folder of this process below the system's temporary one; `remove` it at the end."""

    def __init__(self, prefix: str) -> None:
        """Make it, and remove those of this prefix and user whose owners are gone."""
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_if_left(folder)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            self._lock = _locked(self.path)
        except BaseException:  # an interrupt, too, must leave nothing behind
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove it with all that is in it. Safe to call twice."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _locked(folder: Path) -> int:
    """A new lock in the folder; it has its name only once it is held, so that nobody finds it free before."""
    unnamed = folder / f"{LOCK}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / LOCK)
    return lock


def _remove_if_left(folder: Path) -> None:
    """Remove the folder if it has a lock that nobody holds; one without is not finished, or nobody's of us."""
    with contextlib.suppress(OSError):  # others' folders, and those that go at this moment
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)

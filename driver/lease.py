"""Keeps a client's open jobs open: as long as the process lives, the ledger hears of it, however slowly it feeds.

Without that nobody could tell a client that waits for its next prompt from one that was killed.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from broker.errors import BrokerError

LEASE_S = 120.0  # an open job whose client was not heard of for so long is ended by the driver
RENEW_S = 20.0


class Held(Protocol):
    """What adds to an open job; the lease ends with it."""

    job_id: str


class Leases:
    """The leases on a client's open jobs, renewed by a thread that runs while there are any."""

    def __init__(self, renew: Callable[[str], bool], interval_s: float) -> None:
        """`renew` renews a job's lease, and says whether the job is still open."""
        self._renew = renew
        self._interval_s = interval_s
        self._lock = threading.Lock()
        # Who drops an open job without sealing it gives it up, as if it had died.
        self._held: weakref.WeakValueDictionary[str, Held] = weakref.WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def hold(self, holder: Held) -> None:
        """Renew the lease on the holder's job until it is let go, sealed, or the holder is gone."""
        with self._lock:
            self._held[holder.job_id] = holder
            if (self._thread is None or not self._thread.is_alive()) and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="stoker-leases", daemon=True)
                self._thread.start()

    def let_go(self, job_id: str) -> None:
        """Renew the lease on a job no more."""
        with self._lock:
            self._held.pop(job_id, None)

    def renew(self) -> bool:
        """Renew every lease once. Whether there are any left."""
        with self._lock:  # others may begin to hold a job meanwhile
            job_ids = list(self._held)
        for job_id in job_ids:
            try:
                if not self._renew(job_id):
                    self.let_go(job_id)
            except BrokerError:
                break  # an outage: the driver gives everybody time when it is over
        return bool(self._held)

    def close(self) -> None:
        """Renew nothing any more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            if not self.renew() and self._ends():
                return

    def _ends(self) -> bool:
        with self._lock:
            if self._held:
                return False
            self._thread = None
            return True

"""The scaler of an installation of which this machine's workers are a part: it makes up for what others lack."""

import contextlib
import time
from collections.abc import Sequence

from broker.records import Session
from broker.states import WorkerState
from driver.errors import DriverStateError
from driver.scalers.local import LocalWorkers

RETRY_S = 60.0  # after workers have given up
STAYING = (WorkerState.LOADING, WorkerState.READY, WorkerState.SLEEPING)


class LocalShare:
    """Starts and drains workers of this machine only; those that others have started count, and stay.

    A worker whose supervisor gives up is started again after a while.
    """

    def __init__(self, workers: LocalWorkers) -> None:
        self._workers = workers
        self._given_up_at_s = float("inf")  # since when workers are missing

    @property
    def started(self) -> int:
        """Workers of this machine."""
        return self._workers.wanted

    def scale(self, wanted: int, sessions: Sequence[Session]) -> str:
        """Have so many workers with those of others; says so when others alone are more."""
        elsewhere = self._present_elsewhere(sessions)
        own = max(0, wanted - elsewhere)
        given_up = self._workers.wanted - len(self._workers.pids)
        self._given_up_at_s = min(self._given_up_at_s, time.monotonic()) if given_up > 0 else float("inf")
        if own != self._workers.wanted or time.monotonic() - self._given_up_at_s >= RETRY_S:
            with contextlib.suppress(DriverStateError):  # the Driver is being stopped
                self._workers.aim(own, requests_in_hand(sessions))
        if given_up > 0:
            return f"{given_up} workers of this machine have given up; their logs say why; tried again in {RETRY_S:g} s"
        if elsewhere > wanted:
            return f"{elsewhere} workers run elsewhere: stop them there, or with `stoker drain`"
        return ""

    def close(self) -> None:
        """The workers end with their owner."""

    def _present_elsewhere(self, sessions: Sequence[Session]) -> int:
        own = self._workers.instances | self._workers.leaving_instances
        return sum(row.state in STAYING and not row.drain and row.instance not in own for row in sessions)


def requests_in_hand(sessions: Sequence[Session]) -> dict[str, int]:
    """Requests in hand of each ready worker, by instance."""
    return {row.instance: row.inhand_requests for row in sessions if row.state == WorkerState.READY}

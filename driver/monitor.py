"""Looks after what a `Driver` has started on this machine: its broker, and its workers."""

import logging
import threading
import time
from collections.abc import Callable

from broker.embedded import EmbeddedServer
from broker.errors import EmbeddedServerError
from driver.deadline import Deadline
from driver.errors import DriverStateError, NotFinishedError, WorkerStartError
from driver.scalers.local import LocalWorkers

logger = logging.getLogger("stoker")

READY_POLL_S = 0.1
SERVER_POLL_S = 1.0


class Monitor:
    """Starts the broker again when it has ended, and remembers why workers gave up. `run` is a thread's."""

    def __init__(self, workers: LocalWorkers, server: EmbeddedServer | None, interval_s: float) -> None:
        """`interval_s` is the time between two looks at the workers."""
        self._workers = workers
        self._server = server
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._failure: WorkerStartError | None = None
        self._is_waited_for = False

    def run(self) -> None:
        """Look again and again, until stopped."""
        look_at_s = 0.0
        while not self._stopped.wait(min(self._interval_s, SERVER_POLL_S)):
            self._revive_server()
            if time.monotonic() >= look_at_s:
                look_at_s = time.monotonic() + self._interval_s
                self._note_failure()

    def stop(self) -> None:
        """Make `run` and `wait_until_ready` end."""
        self._stopped.set()

    def forget(self) -> None:
        """Forget a failure: workers are about to be started again."""
        self._failure = None

    def check(self) -> None:
        """Make sure that workers are left, or on their way.

        Raises:
            WorkerStartError: all have given up; the message says why.
        """
        self._note_failure()
        if self._failure is not None and not self._workers.pids:
            raise self._failure

    def wait_until_ready(self, timeout_s: float, count_ready: Callable[[], int]) -> None:
        """Wait until as many workers are ready as are wanted.

        Raises:
            WorkerStartError: one could not start.
            NotFinishedError: they are not ready in time.
            DriverStateError: this was stopped meanwhile.
        """
        deadline = Deadline(timeout_s)
        self._is_waited_for = True
        try:
            while (ready := count_ready()) < self._workers.wanted:
                self._note_failure()
                if self._failure is not None:
                    raise self._failure
                if deadline.is_over:
                    raise NotFinishedError(f"{ready} of {self._workers.wanted} workers are ready after {timeout_s:g} s")
                if self._stopped.wait(READY_POLL_S):
                    raise DriverStateError("this Driver was stopped while its workers were starting")
        finally:
            self._is_waited_for = False

    def _note_failure(self) -> None:
        try:
            self._workers.check()
        except WorkerStartError as error:
            self._failure = error
            if self._workers.pids and not self._is_waited_for:  # else whoever waits is told
                logger.warning("a worker has given up; %d go on: %s", len(self._workers.pids), error)

    def _revive_server(self) -> None:
        try:
            if self._server is not None and self._server.revive():
                logger.warning("the embedded broker had ended; it runs again, with its data")
        except EmbeddedServerError as error:
            logger.warning("%s", error)

"""Keeps one worker process alive on one device: pins the device, starts the process, reports its death, restarts it.

The supervisor never imports torch or Celery. It sees its child end at once, so recovery of a crash need not wait for a
heartbeat to be missed.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping

from broker.clock import Clock
from broker.environment import PREFIX
from broker.errors import BrokerUnavailableError, WorkerNameTakenError
from broker.lifeline import Lifeline
from broker.store import Store
from gpu_worker.device import Placement
from gpu_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

EXIT_GIVEN_UP = 1
EXIT_CONFIGURATION = 78  # see runtime: the child says that starting again would fail again
BACKOFF_LIMIT_S = 30.0
HEALTHY_AFTER_S = 60.0  # a child that lived this long ends a row of crashes
KILL_GRACE_S = 10.0  # beyond drain_timeout
RESERVE_RETRY_S = 0.5


class Supervisor:
    """Runs one worker until it is stopped, is drained, or crashes too often."""

    def __init__(self, store: Store, settings: WorkerSettings, clock: Clock, environ: Mapping[str, str]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._environ = environ
        self._instance = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Ask the worker to finish what it has and end. Safe in a signal handler."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.terminate()

    def run(self, placements: Iterable[Placement]) -> int:
        """Run the worker on the first placement whose name is free. Returns the exit code.

        Raises:
            WorkerNameTakenError: no placement's name is free.
        """
        placement = self._reserve(list(placements))
        crashes = 0
        while not self._stopping.is_set():
            started_s = self._clock.now_s()
            code = self._run_child(placement)
            self._report_end(placement.name, code)
            if code in (0, EXIT_CONFIGURATION) or self._stopping.is_set():
                return 0 if self._stopping.is_set() else code
            crashes = 1 if self._clock.now_s() - started_s > HEALTHY_AFTER_S else crashes + 1
            if crashes > self._settings.max_restarts:
                logger.error("%s crashed %d times in a row; giving up", placement.name, crashes)
                return EXIT_GIVEN_UP
            delay_s = min(self._settings.restart_backoff * 2 ** (crashes - 1), BACKOFF_LIMIT_S)
            logger.warning("%s ended with %s; restarting in %.1f s", placement.name, describe_exit(code), delay_s)
            self._stopping.wait(delay_s)
        return 0

    def _reserve(self, placements: list[Placement]) -> Placement:
        """Take the first free name; wait for a lone one that was left by a dead worker until its lease is over."""
        patience_s = self._store.settings.heartbeat_timeout + 2 if len(placements) == 1 else 0.0
        give_up_s = self._clock.now_s() + patience_s
        while True:
            for placement in placements:
                with contextlib.suppress(WorkerNameTakenError):
                    self._store.sessions.open(uuid.uuid4().hex, placement.name, self._instance, {"pid": os.getpid()})
                    return placement
            if self._clock.now_s() >= give_up_s or self._stopping.is_set():
                names = ", ".join(placement.name for placement in placements[:4])
                raise WorkerNameTakenError(f"every device of this host already has a live worker ({names})")
            self._stopping.wait(RESERVE_RETRY_S)

    def _run_child(self, placement: Placement) -> int:
        line = Lifeline()
        environment = {
            **self._environ,
            **placement.environment(),
            **line.environment(),
            PREFIX + "WORKER_NAME": placement.name,
            PREFIX + "DEVICE": f"cuda:{','.join(map(str, placement.gpus))}" if placement.gpus else "cpu",
            PREFIX + "INTERNAL_INSTANCE": self._instance,
        }
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker.bootstrap"],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=line.fds,
                start_new_session=True,  # Ctrl-C reaches the supervisor, which drains the child
            )
            if self._stopping.is_set():
                self._child.terminate()
            return self._wait(self._child)
        finally:
            line.close()

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child's end; once stopping, no longer than a drain may take."""
        while not self._stopping.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(0.2)
        try:
            return child.wait(self._settings.drain_timeout + KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def _report_end(self, worker: str, code: int) -> None:
        """Declare the child's session dead now, so that its work starts elsewhere without waiting for a timeout."""
        try:
            session_id = self._store.sessions.current(worker)
            if session_id is not None:
                self._store.sessions.expire(session_id, f"the worker process ended with {describe_exit(code)}")
        except BrokerUnavailableError as error:
            logger.warning("could not report the end of %s: %s", worker, error)


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 70`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"

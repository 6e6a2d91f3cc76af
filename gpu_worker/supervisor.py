"""Keeps one worker process alive on one device: pins the device, starts the process, reports its death, restarts it.

The supervisor never imports torch or Celery. It sees its child end at once, so recovery of a crash need not wait for a
heartbeat to be missed; and it kills a child whose session was declared dead and that does not end by itself.
"""

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Iterable, Mapping

from broker.clock import Clock
from broker.environment import PREFIX
from broker.errors import BrokerError, WorkerNameTakenError
from broker.records import Cause, Heartbeat
from broker.states import WorkerState
from broker.store import Store
from gpu_worker.child import Child
from gpu_worker.device import Placement
from gpu_worker.exits import EXIT_CONFIGURATION, EXIT_FENCED, EXIT_NAME_TAKEN, describe_exit
from gpu_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

EXIT_GIVEN_UP = 1
INSTANCE = PREFIX + "INTERNAL_INSTANCE"
BACKOFF_LIMIT_S = 30.0
HEALTHY_AFTER_S = 60.0  # a child that lived this long ends a row of crashes
KILL_GRACE_S = 10.0  # beyond drain_timeout
FENCED_GRACE_S = 3.0  # for a child to see by itself that it is declared dead
WATCH_S = 1.0
POLL_S = 0.1
RESERVE_RETRY_S = 0.5


class Supervisor:
    """Runs one worker until it is stopped, is drained, or crashes too often."""

    def __init__(self, store: Store, settings: WorkerSettings, clock: Clock, environ: Mapping[str, str]) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._environ = environ
        # Who starts a supervisor may choose this name for its life, and so know its sessions.
        self._instance = environ.get(INSTANCE) or uuid.uuid4().hex
        self._reservation = ""
        self._stopping = threading.Event()
        self._child: Child | None = None
        self._crashes = 0

    def stop(self) -> None:
        """Ask the worker to finish what it has and end. Safe in a signal handler."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    def abandon(self) -> None:
        """End the worker at once: whoever wanted it is gone, and perhaps the broker too."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    def run(self, placements: Iterable[Placement]) -> int:
        """Run the worker on the first placement whose name is free. Returns the exit code.

        Raises:
            WorkerNameTakenError: no placement's name is free.
        """
        choices = list(placements)
        placement = self._reserve(choices)
        while not self._stopping.is_set():
            started_s = self._clock.now_s()
            child = self._start(placement)
            code = self._wait(child, placement.name)
            self._report_end(placement.name, code)
            if self._stopping.is_set():
                return 0
            if code in (0, EXIT_CONFIGURATION):
                return code
            if code == EXIT_NAME_TAKEN:  # lost while nobody could beat for it, as in an outage of Redis
                placement = self._reserve(choices)
            elif not self._back_off(placement.name, child, code, self._clock.now_s() - started_s):
                return EXIT_GIVEN_UP
        return 0

    def _reserve(self, placements: list[Placement]) -> Placement:
        """Take the first free name; wait for Redis, and for a lone name that a dead worker left behind."""
        patience_s = self._store.settings.heartbeat_timeout + 2 if len(placements) == 1 else 0.0
        give_up_s = self._clock.now_s() + patience_s
        while not self._stopping.is_set():
            try:
                self._store.check()
                for placement in placements:
                    with contextlib.suppress(WorkerNameTakenError):
                        self._hold(placement.name)
                        return placement
            except BrokerError as error:
                logger.warning("waiting: %s", error)
                give_up_s = self._clock.now_s() + patience_s
            if self._clock.now_s() >= give_up_s:
                names = ", ".join(placement.name for placement in placements[:4])
                raise WorkerNameTakenError(
                    f"a live worker already has {names}: choose another --name or --device, or stop that worker"
                )
            self._stopping.wait(RESERVE_RETRY_S)
        return placements[0]

    def _hold(self, worker: str) -> None:
        """Open a session that only keeps the name, while there is no child or it has not opened its own."""
        self._reservation = uuid.uuid4().hex
        self._store.sessions.open(self._reservation, worker, self._instance, {"pid": os.getpid()})

    def _keep(self, worker: str) -> None:
        """Beat for the reservation; once the child's session has replaced it, this changes nothing."""
        with contextlib.suppress(BrokerError):
            self._store.sessions.beat(self._reservation, worker, Heartbeat(state=WorkerState.STARTING))

    def _start(self, placement: Placement) -> Child:
        child = self._child = Child(placement, self._instance, self._environ)
        if self._stopping.is_set():  # set before there was a child to tell
            child.terminate()
        return child

    def _wait(self, child: Child, worker: str) -> int:
        """Wait for the child's end; kill it when a drain takes too long, or when it is declared dead and goes on."""
        before = self._dead_session(worker)  # of the last child: this one may need long to open its own
        kill_at_s = float("inf")
        look_at_s = self._clock.now_s() + WATCH_S
        while (code := child.poll(POLL_S)) is None:
            now_s = self._clock.now_s()
            if self._stopping.is_set():
                kill_at_s = min(kill_at_s, now_s + self._settings.drain_timeout + KILL_GRACE_S)
            elif now_s >= look_at_s:
                look_at_s = now_s + WATCH_S
                self._keep(worker)
                is_fenced = self._dead_session(worker) not in (None, before)
                kill_at_s = min(kill_at_s, now_s + FENCED_GRACE_S) if is_fenced else float("inf")
            if now_s >= kill_at_s:
                logger.warning("%s does not end by itself; killing it", worker)
                child.kill()
        return code

    def _dead_session(self, worker: str) -> str | None:
        """Our latest session of this name if that is declared dead; None when it lives, or nobody can tell.

        Asking says that we are there, and will report its end: the leader leaves that to us.
        """
        try:
            session_id = self._store.sessions.current(worker, instance=self._instance)
            if session_id is None:
                return None
            state = self._store.sessions.watch(session_id, self._instance)
        except BrokerError:
            return None
        return session_id if state in (None, WorkerState.DEAD) else None

    def _report_end(self, worker: str, code: int) -> None:
        """Declare the child's session dead now, so that its work starts elsewhere without waiting for a timeout."""
        # Asked to end, or already declared dead: that is nobody's fault.
        blameless = self._stopping.is_set() or code in (0, EXIT_FENCED, EXIT_NAME_TAKEN)
        cause = Cause.STOPPED if blameless else Cause.CRASHED
        reason = f"its process ended with {describe_exit(code)}"
        try:
            session_id = self._store.sessions.current(worker, instance=self._instance)
            if session_id is not None:
                self._store.sessions.expire(session_id, cause, reason, instance=self._instance)
        except BrokerError as error:
            logger.warning("could not report the end of %s: %s", worker, error)

    def _back_off(self, worker: str, child: Child, code: int, lived_s: float) -> bool:
        """Wait before the next start, longer with each crash in a row. False when there were too many."""
        self._crashes = 1 if lived_s > HEALTHY_AFTER_S else self._crashes + 1
        last = f"; its last words: {child.last_line}" if child.last_line else ""
        if self._crashes > self._settings.max_restarts:
            logger.error("%s crashed %d times in a row; giving up%s", worker, self._crashes, last)
            return False
        # A single crash is mostly over with the process: start again at once. The next ones are a pattern.
        delay_s = min(self._settings.restart_backoff * 2 ** (self._crashes - 2), BACKOFF_LIMIT_S) * (self._crashes > 1)
        logger.warning("%s ended with %s; restarting in %.1f s%s", worker, describe_exit(code), delay_s, last)
        self._pause(worker, delay_s)
        return True

    def _pause(self, worker: str, seconds: float) -> None:
        """Wait, and keep the name meanwhile: another worker must not take the device between two lives of ours."""
        until_s = self._clock.now_s() + seconds
        with contextlib.suppress(BrokerError, WorkerNameTakenError):
            self._hold(worker)
        while (left_s := until_s - self._clock.now_s()) > 0 and not self._stopping.is_set():
            self._keep(worker)
            self._stopping.wait(min(left_s, WATCH_S))

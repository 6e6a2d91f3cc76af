"""Workers as processes of this machine, each `python -m gpu_worker` with a log file of its own."""

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker.lifeline import Lifeline
from driver.errors import DriverStateError, WorkerStartError
from driver.settings import drain_timeout_of_workers

STOP_GRACE_S = 15.0  # beyond a worker's drain_timeout, and above its supervisor's own patience
INSTANCE_VARIABLE = "STOKER_INTERNAL_INSTANCE"
# What a worker's log puts before the message: who speaks, or time, process and level.
LOG_PREFIX = re.compile(r"^(stoker worker: |\S+ \S+ (\S+ )?(DEBUG|INFO|WARNING|ERROR|CRITICAL) )")


@dataclass(frozen=True, kw_only=True)
class LocalWorker:
    """A worker's supervisor: the process, its log, and the id under which its sessions are known."""

    process: subprocess.Popen[bytes]
    log: Path
    instance: str
    kill_at_s: float = float("inf")  # when it has been told to end, and has not

    @property
    def has_ended(self) -> bool:
        """Whether its process is no more."""
        return self.process.poll() is not None

    @property
    def has_given_up(self) -> bool:
        """Whether it ended by itself, and with an error."""
        return (self.process.poll() or 0) > 0

    @property
    def reason(self) -> str:
        """Why it ended: the last line of its log."""
        line = LOG_PREFIX.sub("", last_line(self.log))
        return line or f"a worker ended with exit code {self.process.returncode}"


class LocalWorkers:
    """Starts and stops worker processes; they end with the process that holds this object, however it ends."""

    def __init__(self, environment: Mapping[str, str], log_folder: Path) -> None:
        """`environment` is added to that of this process.

        Raises:
            ConfigurationError: its drain timeout does not fit.
        """
        self._environment = environment
        self._stop_timeout_s = drain_timeout_of_workers(environment) + STOP_GRACE_S
        self._log_folder = log_folder
        self._workers: list[LocalWorker] = []
        self._leaving: list[LocalWorker] = []  # told to end: they drain
        self._lifeline = Lifeline()
        self._lock = threading.RLock()
        self._started = 0
        self._stopped = False
        self.wanted = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers' supervisors."""
        return [worker.process.pid for worker in self._workers]

    @property
    def instances(self) -> set[str]:
        """The ids under which the workers' sessions are known."""
        return {worker.instance for worker in self._workers}

    @property
    def leaving_instances(self) -> set[str]:
        """The same of those that have been told to end."""
        return {worker.instance for worker in self._leaving}

    def aim(self, wanted: int, in_hand: Mapping[str, int] | None = None) -> None:
        """Start workers, or let some drain and end, until `wanted` are left. Does not wait for them.

        Those go first that load yet, then those with the fewest requests `in_hand` (by instance), then the youngest.

        Raises:
            DriverStateError: they were stopped.
        """
        with self._lock:
            if self._stopped:
                raise DriverStateError("the workers were stopped; make a new Driver")
            self.wanted = wanted
            while len(self._workers) < wanted:
                self._start()
            youngest_first = reversed(self._workers)
            leaving = sorted(youngest_first, key=lambda worker: (in_hand or {}).get(worker.instance, -1))
            for worker in leaving[: len(self._workers) - wanted]:
                self._let_go(worker)

    def scale(self, wanted: int, in_hand: Mapping[str, int] | None = None) -> None:
        """As `aim`, and wait until those that are too many have drained and ended.

        Raises:
            DriverStateError: they were stopped.
        """
        with self._lock:
            self.aim(wanted, in_hand)
            leaving = list(self._leaving)
        _wait_for(leaving)

    def check(self) -> None:
        """Replace workers whose supervisor was killed; kill those that should have ended long ago.

        Raises:
            WorkerStartError: workers gave up by themselves; the message holds the last line of each one's log.
        """
        with self._lock:
            self._leaving = [worker for worker in self._leaving if not worker.has_ended]
            for worker in self._leaving:
                if time.monotonic() >= worker.kill_at_s:
                    worker.process.kill()
            ended = [worker for worker in self._workers if worker.has_ended]
            for worker in ended:
                self._workers.remove(worker)
            for _ in [worker for worker in ended if worker.process.returncode < 0]:
                self._start()
        reasons = dict.fromkeys(worker.reason for worker in ended if worker.has_given_up)
        if reasons:
            raise WorkerStartError("; ".join(reasons))

    def stop(self) -> None:
        """Stop all workers. Safe to call twice."""
        with self._lock:
            self._stopped = True
            for worker in list(self._workers):
                self._let_go(worker)
            leaving, self._leaving = self._leaving, []
        _wait_for(leaving)
        self._lifeline.close()

    def _let_go(self, worker: LocalWorker) -> None:
        self._workers.remove(worker)
        if not worker.has_ended:
            worker.process.terminate()
        self._leaving.append(replace(worker, kill_at_s=time.monotonic() + self._stop_timeout_s))

    def _start(self) -> None:
        self._started += 1
        log = self._log_folder / f"worker-{self._started}.log"
        instance = uuid.uuid4().hex
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **self._environment, **self._lifeline.environment(), INSTANCE_VARIABLE: instance},
                pass_fds=self._lifeline.fds,
                start_new_session=True,  # Ctrl-C reaches the owner, which stops its workers in order
            )
        self._workers.append(LocalWorker(process=process, log=log, instance=instance))


def last_line(log: Path) -> str:
    """The last line of a log file that is not empty; '' when there is none."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _wait_for(leaving: Sequence[LocalWorker]) -> None:
    for worker in leaving:
        try:
            worker.process.wait(max(0.0, worker.kill_at_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()

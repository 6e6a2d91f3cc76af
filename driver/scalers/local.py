"""Workers as processes of this machine, each `python -m gpu_worker` with a log file of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from broker.lifeline import Lifeline
from driver.errors import WorkerStartError

STOP_TIMEOUT_S = 45.0  # above a worker's drain_timeout and what it takes to end


class LocalWorkers:
    """Starts and stops worker processes; they end with the process that holds this object, however it ends."""

    def __init__(self, environment: Mapping[str, str], log_folder: Path) -> None:
        self._environment = environment
        self._log_folder = log_folder
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._lifeline = Lifeline()
        self._lock = threading.Lock()
        self._started = 0

    @property
    def count(self) -> int:
        """Workers that should be running."""
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers' supervisors."""
        return [process.pid for process, _ in self._processes]

    def scale(self, wanted: int) -> None:
        """Start workers, or drain the youngest, until `wanted` run."""
        with self._lock:
            while len(self._processes) < wanted:
                self._start()
            surplus = [self._processes.pop() for _ in range(len(self._processes) - wanted)]
        _end(surplus)

    def check(self) -> None:
        """Replace workers whose supervisor was killed.

        Raises:
            WorkerStartError: a worker gave up by itself; the message holds the last line of its log.
        """
        with self._lock:
            ended = [item for item in self._processes if item[0].poll() is not None]
            for item in ended:
                self._processes.remove(item)
            killed = [item for item in ended if item[0].returncode < 0]
            for _ in killed:
                self._start()
        for process, log in ended:
            if process.returncode > 0:
                raise WorkerStartError(last_line(log) or f"a worker ended with exit code {process.returncode}")

    def stop(self) -> None:
        """Stop all workers. Safe to call twice."""
        self.scale(0)
        self._lifeline.close()

    def _start(self) -> None:
        self._started += 1
        log = self._log_folder / f"worker-{self._started}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **self._environment, **self._lifeline.environment()},
                pass_fds=self._lifeline.fds,
                start_new_session=True,  # Ctrl-C reaches the owner, which stops its workers in order
            )
        self._processes.append((process, log))


def last_line(log: Path) -> str:
    """The last line of a log file that is not empty; '' when there is none."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _end(items: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
    for process, _ in items:
        if process.poll() is None:
            process.terminate()
    for process, _ in items:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

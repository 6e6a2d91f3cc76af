"""Processes of the system under test: how they are started, watched and ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

MARK = "E2E_MARK"  # every process that a test session starts inherits it
# A command ends with the process that runs the tests, even if that is killed.
STOKER = """
import os
from broker import lifeline
lifeline.watch(os.environ, lambda: os._exit(1))
from driver.cli import main
main()
"""


class Process:
    """One process and its log; ended by its id only."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, pass_fds: Sequence[int] = ()
    ) -> None:
        self._log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=dict(environment),
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code, once it has ended."""
        wait_until(
            lambda: not self.is_running, timeout, what=lambda: f"the end of {self._process.args}\n{self.log[-2000:]}"
        )
        return self._process.returncode

    def end(self, timeout: float = 60.0) -> int:
        """Ask it to end, also when it is stopped; kill it if it does not."""
        if self.is_running:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except AssertionError:
            self._process.kill()
            self._process.wait()
            raise


class Worker(Process):
    """A worker: its supervisor is the process itself, and the child generates."""

    name = ""

    @property
    def child_pid(self) -> int:
        """Process id of the supervisor's child, once there is one."""
        return wait_until(lambda: next(iter(children(self.pid)), 0), what=f"a child of {self.name}")

    def send_both(self, number: signal.Signals) -> None:
        """A signal for supervisor and child together."""
        for pid in (self.pid, self.child_pid):
            os.kill(pid, number)


def stoker_command(*arguments: str) -> list[str]:
    """The `stoker` command as a command line of this Python."""
    return [sys.executable, "-c", STOKER, *arguments]


def children(pid: int) -> list[int]:
    """Ids of the direct children of a process; none when it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[int]:
    """Ids of all processes below a process; none when it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def marked_processes() -> list[str]:
    """Everything that this test session has started and that still runs."""
    mark, found = os.environ[MARK], []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found

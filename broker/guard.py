"""A guard: a small process that runs a server for its owner, and ends it with the owner, however that ends.

`Guard` is what the owner has of it; `run_guarded` is what the process does.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple, TypeAlias

from broker import lifeline
from broker.later import call_later

Server: TypeAlias = "subprocess.Popen[bytes]"
Output: TypeAlias = "int | IO[bytes]"  # as Popen takes it

PATIENCE_S = 5.0  # between asking a server to end and insisting
STOP_TIMEOUT_S = PATIENCE_S + 5.0  # for the guard
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Guard:
    """A guard that runs: `python -m MODULE ARGUMENT …`."""

    def __init__(self, module: str, arguments: Sequence[str], *, stdout: Output, stderr: Output) -> None:
        self._line = lifeline.Lifeline()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=os.environ | self._line.environment(),
                pass_fds=self._line.fds,
                start_new_session=True,  # Ctrl-C must reach the owner first, not the server
            )
        except BaseException:  # an interrupt, too, must leave nothing behind
            self._line.close()
            raise

    def stop(self) -> None:
        """End the server, and wait for it. Safe to call twice."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._line.close()


class Ended(NamedTuple):
    """How the server ended."""

    pid: int
    code: int  # negative for a signal
    orphaned: bool  # the owner was gone


def run_guarded(
    command: list[str],
    send: Callable[[Server, signal.Signals], None],
    *,
    if_killed: signal.Signals,
    environment: Mapping[str, str] | None = None,
    process_group: int | None = None,
) -> Ended:
    """Run the command until it ends, which it is asked to when a SIGTERM comes or the owner is gone.

    Called in the main thread, before any other runs. `send` is how the server is signalled: SIGTERM, and SIGKILL after
    a while. `if_killed` is what it gets from the kernel should the guard itself be killed.
    """
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        process_group=process_group,
        preexec_fn=lambda: _die_with_parent(if_killed),  # noqa: PLW1509 - no other thread runs yet
    )
    orphaned = threading.Event()

    def end() -> None:
        """Ask, and insist after a while: a server that is just starting may refuse, and is not asked twice."""
        send(server, signal.SIGTERM)
        call_later(PATIENCE_S, lambda: send(server, signal.SIGKILL))

    def on_orphaned() -> None:
        orphaned.set()
        end()

    signal.signal(signal.SIGTERM, lambda _number, _frame: end())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline.watch(os.environ, on_orphaned)
    code = server.wait()
    return Ended(server.pid, code, orphaned.is_set())


def _die_with_parent(number: signal.Signals) -> None:
    # Elsewhere than on Linux there is no such call.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)

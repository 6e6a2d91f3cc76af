"""Runs a server for its worker and ends it with the worker: `python -m gpu_worker.engine.openai_guard COMMAND …`.

The server and what it starts form a process group of their own, which is ended as a whole when a SIGTERM comes, when
the worker is gone (however it died), and when the server itself has ended and left something behind.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

from broker import lifeline
from broker.environment import PREFIX

PATIENCE_S = 5.0  # between asking and insisting
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(command: list[str]) -> int:
    """Run the command until it ends. Returns its exit code, negative for a signal."""
    # What is meant for the worker, its keys and descriptors, is none of the server's business.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        process_group=0,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other thread runs yet
    )
    signal.signal(signal.SIGTERM, lambda _number, _frame: _end(server.pid))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline.watch(os.environ, lambda: _end(server.pid))
    code = server.wait()
    _signal(server.pid, signal.SIGKILL)  # a killed server's own children
    return code


def _end(group: int) -> None:
    """Ask all of the group to end, and insist after a while."""
    _signal(group, signal.SIGTERM)
    timer = threading.Timer(PATIENCE_S, _signal, (group, signal.SIGKILL))
    timer.daemon = True
    timer.start()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _die_with_parent() -> None:
    # Should the guard itself be killed. Elsewhere than on Linux there is no such call.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a server for its worker and ends it with the worker: `python -m gpu_worker.engine.openai_guard COMMAND …`.

The server and what it starts form a process group of their own, which is ended as a whole when a SIGTERM comes, when
the worker is gone (however it died), and when the server itself has ended and left something behind.
"""

import contextlib
import os
import signal
import sys

from broker.environment import PREFIX
from broker.guard import run_guarded


def main(command: list[str]) -> int:
    """Run the command until it ends. Returns its exit code, negative for a signal."""
    # What is meant for the worker, its keys and descriptors, is none of the server's business.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    ended = run_guarded(
        command,
        lambda server, number: _signal(server.pid, number),
        if_killed=signal.SIGKILL,
        environment=environment,
        process_group=0,
    )
    _signal(ended.pid, signal.SIGKILL)  # a killed server's own children
    return ended.code


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

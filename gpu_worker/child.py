"""The worker's process as its supervisor holds it: pinned, tied to the supervisor's life, its last words remembered."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

from broker.environment import PREFIX
from broker.lifeline import Lifeline
from gpu_worker.device import Placement


class Child:
    """One run of `gpu_worker.bootstrap`. What it prints on standard error is passed on."""

    def __init__(self, placement: Placement, instance: str, environ: Mapping[str, str]) -> None:
        self._line = Lifeline()
        environment = {
            **environ,
            **placement.environment(),
            **self._line.environment(),
            PREFIX + "WORKER_NAME": placement.name,
            PREFIX + "DEVICE": placement.device,
            PREFIX + "INTERNAL_INSTANCE": instance,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_worker.bootstrap"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=self._line.fds,
            start_new_session=True,  # Ctrl-C reaches the supervisor, which drains the child
        )
        assert self._process.stderr is not None
        self._last_line = b""
        self._pump = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._pump.start()

    @property
    def last_line(self) -> str:
        """The last line that it printed on standard error; for when it has ended."""
        # A grandchild may hold the pipe open: the last words are worth a moment, no more.
        self._pump.join(1.0)
        return self._last_line.decode("utf-8", "replace").strip()

    def poll(self, timeout_s: float) -> int | None:
        """Wait up to `timeout_s` seconds for the end. Returns the exit code, negative for a signal; None if it runs."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._line.close()
        return code

    def terminate(self) -> None:
        """Ask it to drain. Safe in a signal handler."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def _pass_on(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in stderr:
                if line.strip():
                    self._last_line = line
                os.write(sys.stderr.fileno(), line)

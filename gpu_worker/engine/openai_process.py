"""A server that the worker starts on a port of this machine, and that ends with it; see `openai_guard`."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from typing import IO

import psutil

from broker.errors import ConfigurationError
from broker.guard import Guard


def server_command(template: str, *, model: str, port: int) -> list[str]:
    """The command's words, with `{model}` and `{port}` in them replaced.

    Raises:
        ConfigurationError: it cannot be read, or there is no such program.
    """
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ConfigurationError(f"openai_command cannot be read as a command line: {error}") from error
    words = [word.replace("{model}", model).replace("{port}", str(port)) for word in words]
    if not words or shutil.which(words[0]) is None:
        raise ConfigurationError(f"openai_command: there is no program {words[0] if words else ''!r}")
    if "serve" in words and "--continuous-batching" in words:
        raise ConfigurationError(
            "openai_command: with --continuous-batching `transformers serve` samples every request as it was asked to"
            " for the first (transformers 5.24); leave it out, or take engine=transformers"
        )
    return words


class ServerProcess:
    """One run of a server. What it prints is passed on to standard error."""

    def __init__(self, command: list[str]) -> None:
        self._last_line = b""
        self._swept = False
        self._guard = Guard("gpu_worker.engine.openai_guard", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._process = self._guard.process
        assert self._process.stdout is not None
        self._pump = threading.Thread(
            target=self._pass_on, args=(self._process.stdout,), name="openai-server-log", daemon=True
        )
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id of the guard; its only child is the server."""
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """How the server ended, with its last words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0 and not self._swept:  # the guard itself was killed, and could end nothing
            self._swept = True
            _end_session(self._process.pid)
        self._pump.join(1.0)  # the last words are worth a moment
        last = self._last_line.decode("utf-8", "replace").strip()
        # Python gives a signal's number as a negative code, of which a process keeps the lowest byte.
        number = -code if code < 0 else 256 - code if code > 192 else 0
        how = f"signal {number}" if number else f"exit code {code}"
        return f"the server ended with {how}" + (f"; its last words: {last}" if last else "")

    def stop(self) -> None:
        """End the server and all that it has started. Safe to call twice."""
        self._guard.stop()
        if self._process.returncode < 0:  # killed just now, or asked to end before it could listen
            _end_session(self._process.pid)
        self._pump.join(1.0)

    def _pass_on(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                if line.strip():
                    self._last_line = line
                with contextlib.suppress(OSError, ValueError):  # nobody reads: the server must not stand still for it
                    os.write(sys.stderr.fileno(), line)


def _end_session(leader: int) -> None:
    """Kill what is left of the session that a guard has led."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)

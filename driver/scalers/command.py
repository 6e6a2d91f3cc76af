"""Scales by a command of the user's, such as `docker compose up --scale gpu-worker={n}` or `kubectl scale`.

The command says how many workers there should be, and whoever runs them chooses which to stop; a worker that gets
SIGTERM drains. One command runs at a time, without a shell, and a number that changes meanwhile waits for its end.
"""

import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence

from broker.errors import ConfigurationError
from broker.records import Session
from driver.settings import DriverSettings

logger = logging.getLogger(__name__)

PLACE = "{n}"
RETRY_S = 10.0
WORDS_KEPT = 500  # characters of what a failed command says


class CommandScaler:
    """Runs the command whenever another number is wanted, and again `retry_s` after it has failed.

    Raises:
        ConfigurationError: the command is none, or has no place for the number.
    """

    def __init__(self, command: str, timeout_s: float, retry_s: float = RETRY_S) -> None:
        self._words = command_words(command)
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._wanted = -1
        self._problem = ""
        self._process: subprocess.Popen[str] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> int:
        """None of its own: whoever the command speaks to knows."""
        return 0

    def scale(self, wanted: int, sessions: Sequence[Session]) -> str:  # noqa: ARG002  (who runs them knows them)
        """Have the command ask for so many; what went wrong at the last time."""
        with self._changed:
            if wanted != self._wanted and not self._closed:
                self._wanted = wanted
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="stoker-scale-command", daemon=True)
                    self._thread.start()
            return self._problem

    def close(self) -> None:
        """Stop, with the command that runs."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            self._kill()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        done = -1
        while (wanted := self._next(done)) >= 0:
            problem = self._ask(wanted)
            with self._changed:
                if self._closed:
                    return
                if problem and problem != self._problem:
                    logger.warning("cannot have %d workers: %s", wanted, problem)
                self._problem = problem
                done = wanted
                if problem:
                    done = -1
                    self._changed.wait_for(lambda asked=wanted: self._closed or self._wanted != asked, self._retry_s)

    def _next(self, done: int) -> int:
        """Wait for a number that has not been asked for; -1 at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted != done)
            return -1 if self._closed else self._wanted

    def _ask(self, wanted: int) -> str:
        """Run the command once; what went wrong."""
        words = [word.replace(PLACE, str(wanted)) for word in self._words]
        logger.info("asking for %d workers: %s", wanted, shlex.join(words))
        try:
            with self._changed:
                if self._closed:
                    return ""
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # it and what it starts can be ended together
                )
            return self._outcome(self._process)
        except OSError as error:
            return f"{words[0]} cannot be run: {error.strerror}"

    def _outcome(self, process: subprocess.Popen[str]) -> str:
        name = self._words[0]
        try:
            _, said = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            self._kill()
            process.communicate()
            return f"{name} did not end within {self._timeout_s:g} s"
        if process.returncode == 0:
            return ""
        words = said.strip()[-WORDS_KEPT:]
        return f"{name} ended with exit code {process.returncode}" + (f": {words}" if words else "")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def command_scaler(settings: DriverSettings) -> CommandScaler | None:
    """The scaler of the command in the settings; None when there is none.

    Raises:
        ConfigurationError: see `CommandScaler`.
    """
    return CommandScaler(settings.scale_command, settings.scale_command_timeout) if settings.scale_command else None


def command_words(command: str) -> list[str]:
    """The words of a command template.

    Raises:
        ConfigurationError: it cannot be split into words, or has no place for the number.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"scale_command={command!r} cannot be split into words: {error}") from error
    if not words or not any(PLACE in word for word in words):
        raise ConfigurationError(f"scale_command={command!r} must be a command with {PLACE} for the number of workers")
    return words

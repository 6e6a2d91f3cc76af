"""What takes long is done in the background, one thing at a time."""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from broker.commands import Operation
from broker.errors import StokerError
from gpu_worker.standing import NotNowError

logger = logging.getLogger(__name__)

Note: TypeAlias = Callable[[str], None]
Work: TypeAlias = Callable[[Note], Any]


class _Running:
    """The present operation, or the last."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.stage, self.error, self.result = "", "", None
        self.started_s = time.monotonic()
        self.took_s = 0.0
        self.ended = threading.Event()

    def record(self) -> Operation:
        ended = self.ended.is_set()
        seconds = self.took_s if ended else time.monotonic() - self.started_s
        return Operation(
            number=self.number,
            name=self.name,
            stage="" if ended else self.stage,
            seconds=round(seconds, 2),
            ended=ended,
            error=self.error,
            result=self.result,
        )


class Operations:
    """Runs one operation at a time; a failure is its record, and a line in the log."""

    def __init__(self, on_stage: Note) -> None:
        self._on_stage = on_stage
        self._lock = threading.Lock()
        self._last: _Running | None = None

    @property
    def last(self) -> Operation | None:
        """The present operation, or else the last one."""
        return self._last.record() if self._last is not None else None

    def begin(self, name: str, work: Work, wait_s: float) -> Operation:
        """Do `work` in a thread of its own; wait so long for its end, in case it is quick.

        Raises:
            NotNowError: another one is going on; says which.
        """
        with self._lock:
            last = self._last
            if last is not None and not last.ended.is_set():
                at = f": {last.stage}" if last.stage else ""
                raise NotNowError(f"busy with {last.name}, for {time.monotonic() - last.started_s:.1f} s now{at}")
            running = self._last = _Running(last.number + 1 if last else 1, name)
        threading.Thread(target=self._run, args=(running, work), name=f"operation-{name}", daemon=True).start()
        running.ended.wait(wait_s)
        return running.record()

    def _run(self, running: _Running, work: Work) -> None:
        def note(stage: str) -> None:
            running.stage = stage
            self._on_stage(f"{running.name}: {stage}")

        try:
            running.result = work(note)
        except StokerError as error:
            running.error = printable(str(error))
            logger.warning("%s: %s", running.name, running.error)
        except BaseException as error:  # `sys.exit` in a user's method too: without an end, no other could begin
            running.error = printable(f"{type(error).__name__}: {error}")
            # As text, because a log in UTF-8 cannot take every message.
            logger.error("%s failed\n%s", running.name, printable(traceback.format_exc()))  # noqa: TRY400
        running.took_s = time.monotonic() - running.started_s
        running.ended.set()


def printable(text: str) -> str:
    """The text with what no terminal and no UTF-8 can take (lone surrogates) written out."""
    return text.encode("utf-8", "backslashreplace").decode()

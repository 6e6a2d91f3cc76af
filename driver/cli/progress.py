"""The progress bar of a batch run: requests, tokens a second, time left, and what is in the way."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from driver.batch_progress import BatchProgress

READ_BYTES = 1 << 20


class BatchBar:
    """Shows a batch run on standard error; on something that is no terminal, only obstacles are printed."""

    def __init__(self, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("requests", total=total, rate="")
        self._started_s = time.monotonic()
        self._obstacle: str | None = None

    def show(self, progress: BatchProgress) -> None:
        """Draw the latest state."""
        elapsed_s = max(time.monotonic() - self._started_s, 1e-3)
        rate = f"{progress.completion_tokens / elapsed_s:.0f} tokens/s"
        self._bar.update(self._task, completed=progress.skipped + progress.done, rate=rate)
        if progress.obstacle and progress.obstacle != self._obstacle:
            typer.echo(f"stoker: waiting: {progress.obstacle}", err=True)
        self._obstacle = progress.obstacle

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def count_lines(path: Path) -> int:
    """Lines of a file that are not blank, read in pieces."""
    count = 0
    with path.open("rb") as file:
        in_line = False
        while chunk := file.read(READ_BYTES):
            for place, piece in enumerate(chunk.split(b"\n")):
                if place > 0:
                    in_line = False
                if not in_line and piece.strip():
                    count += 1
                    in_line = True
    return count

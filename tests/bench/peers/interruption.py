"""Kills a worker in the middle of a request, and watches what becomes of its requests."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from sleeping import Notes

LOOK_S = 0.01
START_S = 60.0


class System(Protocol):
    """Workers behind a queue."""

    def submit(self, indices: Iterable[int]) -> None:
        """Queue a request for each index."""
        ...

    def finished(self) -> int:
        """How many of those submitted last have their result at the client."""
        ...


class Interruption:
    """Runs of the same number of requests; `told` is the script's argument."""

    def __init__(self, system: System, told: dict) -> None:
        self._system = system
        self._count: int = told["requests"]
        self._duration_s: float = told["tokens"] / told["tokens_per_s"]
        self._tokens: int = told["tokens"]
        self._limit_s: float = told["limit_s"]
        self._notes = Notes(told["folder"])
        self._submitted = 0

    def warm_up(self) -> None:
        """Return when the workers are up: a few requests have been through."""
        self._run(2)

    def undisturbed_s(self) -> float:
        """Seconds to the last result when nothing happens."""
        return self._run(self._count)

    def disturbed(self, kind: str, victims: Callable[[int], list[int]]) -> dict[str, float]:
        """The figures of a run in which a worker is killed; `victims` tells what goes with a process that generates."""
        first, tokens_before = self._submitted, self._notes.tokens()
        started_s = self._submit(self._count)
        assert _wait(lambda: self._system.finished() >= self._count // 4, self._limit_s)
        hurt, pid = self._in_the_middle(first)
        killed_s = time.time()
        for victim in victims(pid):
            os.kill(victim, signal.SIGKILL)
        done = _wait(lambda: self._system.finished() == self._count, self._limit_s)
        figures = {"lost": float(self._count - self._system.finished())}
        if done:
            figures["seconds"] = time.time() - started_s
        again_s = [when_s for index, _, when_s in self._notes.starts() if index == hurt and when_s > killed_s]
        if again_s:
            figures["rerun_s"] = min(again_s) - killed_s
        ends = [index for index in self._notes.ends() if index >= first]
        figures["twice"] = float(len(ends) - len(set(ends)))
        figures["again_tokens"] = float(self._notes.tokens() - tokens_before - self._tokens * len(set(ends)))
        return {f"{kind}_{name}": value for name, value in figures.items()}

    def _run(self, count: int) -> float:
        started_s = self._submit(count)
        if not _wait(lambda: self._system.finished() == count, START_S):
            raise SystemExit(f"{self._system.finished()} of {count} results, though nothing was killed")
        return time.time() - started_s

    def _submit(self, count: int) -> float:
        started_s = time.time()
        self._system.submit(range(self._submitted, self._submitted + count))
        self._submitted += count
        return started_s

    def _in_the_middle(self, first: int) -> tuple[int, int]:
        """A request that has run for about a half, and its process."""
        found: list[tuple[int, int]] = []

        def look() -> bool:
            ended, now_s = set(self._notes.ends()), time.time()
            for index, pid, when_s in self._notes.starts():
                if index >= first and index not in ended and 0.3 < (now_s - when_s) / self._duration_s < 0.7:
                    found.append((index, pid))
            return bool(found)

        assert _wait(look, self._limit_s)
        return found[0]


def parent(pid: int) -> int:
    """The id of a process's parent."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))


# By kind, from a process that generates to all that are killed with it. Its parent would notice, so it goes first.
KINDS = {"child": lambda pid: [pid], "whole": lambda pid: [parent(pid), pid]}


def _wait(predicate: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not predicate():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_S)
    return True

"""How fast workers are, measured from their heartbeats, and how long they take to start. Pure.

The speed that counts is that of a worker with all the work that it can take: a worker with little to do generates few
tokens a second and yet is not slow, and to take it for slow would start more workers, each with less to do.

The scheduler compares workers with each other, and may guess from a single request (`estimates.WorkerSpeeds`). Here
only what a worker has done counts: a guess that is too high would start too few workers.
"""

from collections.abc import Sequence

import msgspec

from broker.records import Session
from broker.states import WorkerState

FULL = 0.8  # of its slots in use: its speed counts as it is
SMOOTHING = 0.3  # the share of a new measurement
MEASURED_OVER_S = 1.0  # at least


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """A session when its speed was last measured, and that speed (0: not yet)."""

    row: Session
    tokens_per_s: float = 0.0
    used_tokens_per_s: float = 0.0  # between its last two beats, however much it had to do
    started: bool = False  # it was ready once: what it loads later, by run-time control, is no start


class Speeds:
    """Remembers sessions from look to look."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last_tokens_per_s = 0.0
        self.startup_s = 0.0  # of the worker that was last seen to become ready

    @property
    def tokens_per_s(self) -> float:
        """The mean of the workers that are there, else of those that were; 0 while nobody knows."""
        return self._last_tokens_per_s

    @property
    def used_tokens_per_s(self) -> float:
        """Of all workers together, as of their last beats."""
        return sum(known.used_tokens_per_s for known in self._known.values())

    def note(self, sessions: Sequence[Session]) -> None:
        """Look at the heartbeat table."""
        for row in sessions:
            before = self._known.get(row.id)
            known = _Known(row=row) if before is None else self._next(before, row)
            if not known.tokens_per_s and row.decode_tokens_per_s:
                known = msgspec.structs.replace(known, tokens_per_s=row.decode_tokens_per_s)  # its own, at its start
            started = row.state == WorkerState.READY or (before is not None and before.started)
            self._known[row.id] = msgspec.structs.replace(known, started=started)
        here = {row.id for row in sessions if row.state == WorkerState.READY}
        self._known = {name: known for name, known in self._known.items() if name in {row.id for row in sessions}}
        speeds = [known.tokens_per_s for name, known in self._known.items() if name in here and known.tokens_per_s]
        if speeds:
            self._last_tokens_per_s = sum(speeds) / len(speeds)

    def _next(self, before: _Known, row: Session) -> _Known:
        if before.row.state == WorkerState.LOADING and row.state == WorkerState.READY and not before.started:
            self.startup_s = max(0, row.beat_ms - row.opened_ms) / 1000
        if row.state != WorkerState.READY or before.row.state != WorkerState.READY or not row.running:
            return _Known(row=row, tokens_per_s=before.tokens_per_s)
        seconds = (row.beat_ms - before.row.beat_ms) / 1000
        if seconds < MEASURED_OVER_S:
            return before  # go on from the same beat: a short time measures badly
        rate = max(0, row.generated_tokens - before.row.generated_tokens) / seconds
        speed = _updated(before.tokens_per_s, rate, is_full=_is_full(before.row, row))
        return _Known(row=row, tokens_per_s=speed, used_tokens_per_s=rate)


def _is_full(before: Session, row: Session) -> bool:
    return min(before.running, row.running) >= FULL * max(1, row.slots)


def _updated(known: float, rate: float, *, is_full: bool) -> float:
    if is_full and known:
        return known + SMOOTHING * (rate - known)
    return max(known, rate)

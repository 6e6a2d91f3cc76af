"""Who is alive: verdicts on worker sessions from their heartbeats. Pure.

Alive; suspect after some missed beats (gets no new work); dead after the timeout, when its end was reported, or when
it misses beats, their connection is closed and its supervisor is silent too; hung when it beats with work in hand and
its engine makes no step. The dead and the hung are recovered from.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from broker.records import Session
from broker.states import WorkerState

MISSED_BEATS = 3  # who lives and has lost its connection beats by a new one before
# A supervisor that lives says so every second. It reports its worker's end, and knows the cause: a closed connection
# does not, and may be closed long before the process has ended.
REPORT_S = 2.0


class Verdict(StrEnum):
    """What the driver thinks of a session."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    HUNG = "hung"
    DEAD = "dead"


class DetectorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When silence means trouble; durations in seconds, the threshold in beats."""

    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 10.0
    failure_threshold: int = 3
    stall_timeout: float = 60.0

    @property
    def presence_counts_after(self) -> float:
        """The silence after which a closed connection means death; before, its worker may only be about to beat."""
        return max(MISSED_BEATS * self.heartbeat_interval, REPORT_S)

    def may_be_absent(self, session: Session) -> bool:
        """Whether a closed connection means that this session is dead: nobody has been heard who would say so."""
        after_s = self.presence_counts_after
        return session.beat_age_s > after_s and session.watch_age_s > after_s

    def are_all_silent(self, sessions: Sequence[Session]) -> bool:
        """Whether no worker beats: a network or a proxy that fails closes the connections of all, dead or not.

        True long before the first of workers that fell silent together would be taken for dead.
        """
        ages_s = [row.beat_age_s for row in sessions if row.state != WorkerState.DEAD]
        return min(ages_s, default=0.0) > self.presence_counts_after / 2


def judge(session: Session, limits: DetectorLimits, *, connected: bool | None = None) -> Verdict:
    """The verdict on one session, by the age of its last beat, its progress, or what was reported of it.

    `connected` is whether the connection of its beats is open; None where that is not known.
    """
    if session.state == WorkerState.DEAD or session.beat_age_s > limits.heartbeat_timeout:
        return Verdict.DEAD
    if connected is False and limits.may_be_absent(session):
        return Verdict.DEAD
    if session.beat_age_s > limits.failure_threshold * limits.heartbeat_interval:
        return Verdict.SUSPECT
    if session.running + session.waiting > 0 and session.stalled_s > limits.stall_timeout:
        return Verdict.HUNG
    return Verdict.ALIVE

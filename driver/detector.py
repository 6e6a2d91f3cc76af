"""Who is alive: verdicts on worker sessions from their heartbeats. Pure.

Alive, then suspect after some missed beats (gets no new work), then dead after the timeout (is recovered from).
"""

from enum import StrEnum

import msgspec

from broker.sessions import Session


class Verdict(StrEnum):
    """What the driver thinks of a session."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


class DetectorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When silence means trouble; durations in seconds."""

    heartbeat_interval: float
    heartbeat_timeout: float
    failure_threshold: int


def judge(session: Session, limits: DetectorLimits) -> Verdict:
    """The verdict on one session, by the age of its last beat or by what was reported of it."""
    if session.state == "dead" or session.beat_age_s > limits.heartbeat_timeout:
        return Verdict.DEAD
    if session.beat_age_s > limits.failure_threshold * limits.heartbeat_interval:
        return Verdict.SUSPECT
    return Verdict.ALIVE

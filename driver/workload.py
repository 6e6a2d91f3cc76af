"""What there is to do in tokens, from the backlogs of jobs and the workers' sessions. Pure."""

from collections.abc import Collection, Sequence

import msgspec

from broker.records import Backlog, Session
from broker.states import WorkerState
from driver.autoscaling import Load
from driver.detector import DetectorLimits, Verdict, judge
from driver.models import Waiting
from driver.speeds import Speeds


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting work of the models that count."""

    requests: float = 0.0
    tokens: float = 0.0
    length_ratio: float = 1.0  # tokens that answers have, to those that they may have


def workload(backlog: Backlog, models: Collection[str], length_ratio: float) -> Workload:
    """The work that waits for these models (an empty collection: for all). `length_ratio` is the last known one."""
    counted = [log for log in backlog.jobs if not models or not log.model or log.model in models]
    learned = [log for log in counted if log.answered and log.mean_cost]
    if learned:
        length_ratio = min(1.0, sum(log.tokens_each for log in learned) / sum(log.mean_cost for log in learned))
    return Workload(
        requests=backlog.share * sum(log.requests for log in counted),
        tokens=backlog.share * sum(log.requests * log.tokens_each for log in counted),
        length_ratio=length_ratio,
    )


def waiting_by_model(backlog: Backlog) -> dict[str, Waiting]:
    """What waits for each model that a job names."""
    found: dict[str, Waiting] = {}
    for log in backlog.jobs:
        if log.model:
            before, requests = found.get(log.model, Waiting()), backlog.share * log.requests
            found[log.model] = Waiting(
                requests=before.requests + requests, tokens=before.tokens + requests * log.tokens_each
            )
    return found


def load_of(work: Workload, sessions: Sequence[Session], limits: DetectorLimits, speeds: Speeds) -> Load:
    """The load that the autoscaler decides by."""
    present = staying(sessions, limits)
    return Load(
        pending_tokens=work.tokens,
        inflight_tokens=sum(row.inhand_tokens for row in sessions) * work.length_ratio,
        pending_requests=round(work.requests),
        ready=sum(row.state == WorkerState.READY for row in present),
        coming=sum(row.state == WorkerState.LOADING for row in present),
        asleep=len(asleep(sessions, limits)),
        tokens_per_s=speeds.tokens_per_s,
        used_tokens_per_s=speeds.used_tokens_per_s,
        startup_s=speeds.startup_s,
    )


def staying(sessions: Sequence[Session], limits: DetectorLimits) -> list[Session]:
    """The workers that work, or soon will, and have not been told to end."""
    return _in_state(sessions, limits, WorkerState.READY, WorkerState.LOADING)


def asleep(sessions: Sequence[Session], limits: DetectorLimits) -> list[Session]:
    """The workers that sleep until somebody wakes them, and have not been told to end."""
    return _in_state(sessions, limits, WorkerState.SLEEPING)


def _in_state(sessions: Sequence[Session], limits: DetectorLimits, *states: WorkerState) -> list[Session]:
    return [row for row in sessions if row.state in states and not row.drain and judge(row, limits) is not Verdict.DEAD]

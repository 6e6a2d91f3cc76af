"""Which deadlines cannot be met any more: whoever waits for them had better know at once. Pure.

Only what is certain counts: a job is given up when it would be late even if everything went `CERTAINTY` times as fast
as measured. Before it goes the work of the higher classes, over the speed of all workers; then one request of it must
still run, where a single one runs fastest.
"""

from collections.abc import Iterable, Sequence

import msgspec

from broker.records import WaitingJob
from driver.estimates import Lengths, probable_tokens
from driver.snapshot import JobView

CERTAINTY = 4.0
MOST = 100  # given up in one round; the others in the next


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose waiting requests cannot be done in time, and why, in a sentence."""

    job_id: str
    reason: str


def certainly_late(
    by_deadline: Iterable[tuple[WaitingJob, int]],
    ahead: Sequence[JobView],
    lengths: Lengths,
    *,
    tokens_per_s: float,
    request_tokens_per_s: float,
    now_ms: int,
) -> list[Late]:
    """Jobs that cannot meet their deadline, of all that have one, the earliest first, with their classes.

    `ahead` are the first of all jobs, as far as they are known. The speeds are those of all workers together and of one
    request where it is fastest; 0 while they are not known.
    """
    if not tokens_per_s or not request_tokens_per_s:
        return []
    late: list[Late] = []
    work = [(view.level, view.backlog * probable_tokens(view) / tokens_per_s) for view in ahead]
    most_s = sum(work_s for _, work_s in work) + lengths.longest() / request_tokens_per_s
    for job, level in by_deadline:
        left_s = (job.deadline_ms - now_ms) / 1000
        if CERTAINTY * left_s >= most_s or len(late) >= MOST:
            break
        before_s = sum(work_s for above, work_s in work if above > level)
        own_s = (lengths.mean(job.id, job.model) or 0.0) / request_tokens_per_s
        if left_s > 0 and before_s + own_s > CERTAINTY * left_s:
            late.append(Late(job_id=job.id, reason=_reason(left_s, before_s, own_s)))
    return late


def _reason(left_s: float, before_s: float, own_s: float) -> str:
    return (
        f"the job's deadline in {left_s:.1f} s cannot be met: at the speed of now work of higher priority takes "
        f"{before_s:.1f} s, and a request of its own {own_s:.1f} s"
    )

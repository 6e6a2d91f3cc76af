"""The keys that each of the ledger's commands reads and changes, in the order of its `KEYS`. Pure."""

from broker.keys import JobKeys, Keys
from broker.topology import queue_name


def submit(names: Keys, job_id: str) -> list[str]:
    """Of `submit`."""
    job = names.job(job_id)
    return [
        job.record,
        job.requests,
        job.costs,
        job.pending,
        names.jobs,
        names.wake,
        names.closing,
        names.waiting,
        names.stopping,
        names.load,
        names.policy,
        job.outputs,
        job.committed,
        *_identical(names, job),
        names.waiting_changes,
    ]


def abandon(names: Keys, job_id: str) -> list[str]:
    """Of `abandon`."""
    job = names.job(job_id)
    return [job.record, names.closing, names.wake, job.answers, job.answered]


def assign(names: Keys, session_id: str, batch_id: str, job_id: str, worker: str) -> list[str]:
    """Of `assign`."""
    job, batch, session = names.job(job_id), names.batch(batch_id), names.session(session_id)
    return [
        names.leader,
        session.record,
        session.batches,
        batch.record,
        batch.requests,
        job.record,
        job.pending,
        job.assigned,
        job.costs,
        names.waiting,
        queue_name(worker),
        names.waiting_changes,
    ]


def claim(names: Keys, session_id: str, batch_id: str, job_id: str) -> list[str]:
    """Of `claim`."""
    job, batch, session = names.job(job_id), names.batch(batch_id), names.session(session_id)
    return [
        batch.record,
        batch.requests,
        session.record,
        job.record,
        job.requests,
        job.assigned,
        job.committed,
        job.attempts,
        job.checkpoints,
    ]


def commit(names: Keys, session_id: str, batch_id: str, job_id: str) -> list[str]:
    """Of `commit`."""
    job, batch, session = names.job(job_id), names.batch(batch_id), names.session(session_id)
    return [
        job.record,
        job.requests,
        job.costs,
        job.pending,
        job.assigned,
        job.committed,
        job.outputs,
        batch.requests,
        session.record,
        names.closing,
        names.wake,
        job.attempts,
        job.checkpoints,
        names.waiting,
        names.load,
        names.policy,
        *_identical(names, job),
        names.waiting_changes,
        job.losses,
    ]


def finish(names: Keys, session_id: str, batch_id: str) -> list[str]:
    """Of `finish`."""
    batch, session = names.batch(batch_id), names.session(session_id)
    return [batch.record, batch.requests, session.record, session.batches, names.wake, names.waiting]


def release(names: Keys, session_id: str, batch_id: str, job_id: str) -> list[str]:
    """Of `release`."""
    job, batch, session = names.job(job_id), names.batch(batch_id), names.session(session_id)
    return [
        batch.record,
        batch.requests,
        session.record,
        session.batches,
        job.pending,
        job.assigned,
        job.committed,
        job.attempts,
        names.wake,
        job.record,
        names.waiting,
        names.waiting_changes,
        job.losses,
    ]


def cancel(names: Keys, job_id: str) -> list[str]:
    """Of `cancel`."""
    job = names.job(job_id)
    return [job.record, names.closing, names.stopping, names.load, job.answers, job.answered]


def close(names: Keys, job_id: str) -> list[str]:
    """Of `close`."""
    job = names.job(job_id)
    return [
        names.jobs,
        names.closing,
        names.stopping,
        names.waiting,
        names.waiting_changes,
        job.deltas,
        *job.all(),
    ]


def _identical(names: Keys, job: JobKeys) -> list[str]:
    """By which requests that must have the same text find each other's output."""
    return [
        job.leaders,
        job.digests,
        job.followers,
        job.answers,
        job.answered,
        names.cache,
        names.cache_times,
        names.sharing,
    ]

"""Snapshots for the policies: by hand, and by hypothesis."""

from hypothesis import strategies as st

from broker.records import PendingRequest, WaitingJob
from driver.scheduler import BatchLimits
from driver.snapshot import JobView, Snapshot, WorkerView


def worker(name="gpu0@a", **fields):
    """A worker whose free slots would all run at once, unless told otherwise."""
    values = {"model": "m", "free_slots": 8, "free_tokens": 1000, "free_batches": 4, "in_hand": 0} | fields
    idle = {"idle_slots": values["free_slots"], "slots": max(values["free_slots"] + values["in_hand"], 1)}
    return WorkerView(session_id=f"session of {name}", worker=name, **(idle | values))


def pending(*attempts, cost=10):
    """Requests with so many attempts behind each."""
    return tuple(PendingRequest(index=index, cost=cost, attempts=tries) for index, tries in enumerate(attempts))


def waiting(name="job", *, model="m", **fields):
    return WaitingJob(id=name, model=model, **fields)


def job(name="job", count=0, *, requests=None, model="m", backlog=None, mean_output=None, **fields):
    """A job; what is not said of it is as in `WaitingJob`. Its level is its priority."""
    shown = pending(*[0] * count) if requests is None else requests
    return JobView(
        job=waiting(name, model=model, **fields),
        pending=shown,
        backlog=len(shown) if backlog is None else backlog,
        mean_output=mean_output,
        level=fields.get("priority", 0),
    )


def snapshot(jobs=(), workers=()):
    return Snapshot(jobs=tuple(jobs), workers=tuple(workers))


limits = st.builds(
    BatchLimits,
    requests=st.integers(1, 40),
    tokens=st.integers(1, 500),
    max_attempts=st.integers(1, 4),
    max_batch_delay=st.sampled_from([0.0, 0.5]),
)
_models = st.sampled_from(["m", "n"])
_requests = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 0, 1, 2, 3]), st.sampled_from([0, 0, 7, 8])),
    min_size=1,
    max_size=40,
).map(
    lambda rows: tuple(
        PendingRequest(index=3 * i, cost=c, attempts=a, prompt_tokens=c // 2, prefix=prefix)
        for i, (c, a, prefix) in enumerate(rows)
    )
)


def _name_jobs(rows):
    return tuple(
        job(
            f"job{i}",
            requests=requests,
            model=model,
            backlog=len(requests) + hidden,
            mean_output=mean,
            priority=priority,
            user=user,
            weight=weight,
        )
        for i, (model, requests, hidden, mean, priority, user, weight) in enumerate(rows)
    )


def _name_workers(rows):
    return tuple(
        WorkerView(
            session_id=f"s{i}",
            worker=f"gpu{i}@a",
            model=model,
            free_slots=slots + window - in_hand,
            free_tokens=tokens,
            free_batches=batches,
            idle_slots=max(slots - in_hand, 0) if tokens > 50 else 0,
            slots=slots,
            in_hand=in_hand,
            tokens_in_hand=20 * in_hand,
            speed=speed,
            isolated=isolated and in_hand > 0,
        )
        for i, (model, slots, window, tokens, batches, in_hand, isolated, speed) in enumerate(rows)
    )


jobs = st.lists(
    st.tuples(
        st.sampled_from(["", "m", "n"]),
        _requests,
        st.sampled_from([0, 0, 1000]),
        st.sampled_from([None, 4.0]),
        st.sampled_from([-10, 0, 0, 10]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([1.0, 1.0, 3.0]),
    ),
    max_size=4,
).map(_name_jobs)
workers = st.lists(
    st.tuples(
        _models,
        st.integers(1, 20),
        st.integers(1, 5),
        st.integers(-10, 400),
        st.integers(-1, 4),
        st.sampled_from([0, 0, 1, 5, 21]),
        st.booleans(),
        st.sampled_from([1.0, 1.0, 4.0]),
    ),
    max_size=6,
).map(_name_workers)
snapshots = st.builds(Snapshot, jobs=jobs, workers=workers, more_jobs=st.booleans())

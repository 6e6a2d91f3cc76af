"""Snapshots for the policies: by hand, and by hypothesis."""

from hypothesis import strategies as st

from broker.records import PendingRequest
from driver.scheduler import BatchLimits
from driver.snapshot import JobView, Snapshot, WorkerView


def worker(name="gpu0@a", **fields):
    values = {"model": "m", "free_slots": 8, "free_tokens": 1000, "free_batches": 4}
    return WorkerView(session_id=f"session of {name}", worker=name, **{**values, **fields})


def pending(*attempts, cost=10):
    """Requests with so many attempts behind each."""
    return tuple(PendingRequest(index=index, cost=cost, attempts=tries) for index, tries in enumerate(attempts))


def job(name="job", count=0, *, requests=None, model="m"):
    return JobView(id=name, model=model, pending=pending(*[0] * count) if requests is None else requests)


def snapshot(jobs=(), workers=()):
    return Snapshot(jobs=tuple(jobs), workers=tuple(workers))


limits = st.builds(BatchLimits, requests=st.integers(1, 40), tokens=st.integers(1, 500), max_attempts=st.integers(1, 4))
_models = st.sampled_from(["m", "n"])
_requests = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 0, 1, 2, 3])), min_size=1, max_size=40
).map(lambda rows: tuple(PendingRequest(index=3 * i, cost=c, attempts=a) for i, (c, a) in enumerate(rows)))


def _name_jobs(rows):
    return tuple(JobView(id=f"job{i}", model=model, pending=requests) for i, (model, requests) in enumerate(rows))


def _name_workers(rows):
    return tuple(
        WorkerView(
            session_id=f"s{i}",
            worker=f"gpu{i}@a",
            model=model,
            free_slots=slots,
            free_tokens=tokens,
            free_batches=batches,
            in_hand=in_hand,
            isolated=isolated and in_hand > 0,
        )
        for i, (model, slots, tokens, batches, in_hand, isolated) in enumerate(rows)
    )


jobs = st.lists(st.tuples(st.sampled_from(["", "m", "n"]), _requests), max_size=4).map(_name_jobs)
workers = st.lists(
    st.tuples(
        _models,
        st.integers(-2, 20),
        st.integers(-10, 400),
        st.integers(-1, 4),
        st.sampled_from([0, 0, 1, 5]),
        st.booleans(),
    ),
    max_size=6,
).map(_name_workers)
snapshots = st.builds(Snapshot, jobs=jobs, workers=workers)

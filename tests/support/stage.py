"""Sets the stage for a ledger test: a leader, workers, jobs and batches in one line each; looks behind the scenes."""

import uuid

from broker.messages import FinishReason, Output, Request, SamplingParams, Usage, failed_output
from broker.records import Cause, Heartbeat
from broker.states import WorkerState

LEADER = "leader"
COST = 4 + 10  # of a request made here: estimated prompt tokens plus max_tokens


def request(text="sixteen letters.", **params):
    return Request(prompt=text, params=SamplingParams(**{"max_tokens": 10, **params}))


def output(index, text="", worker_id=""):
    """A good output: 3 tokens read, 2 written."""
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    return Output(index=index, text=text, finish_reason=FinishReason.STOP, usage=usage, worker_id=worker_id)


def outputs(indices, text=""):
    return [output(index, text) for index in indices]


def failures(indices):
    return [failed_output(index, "engine_error", "broken") for index in indices]


def heartbeat(**fields):
    values = {"state": WorkerState.READY, "model": "m", "slots": 8, "kv_tokens": 10_000, "max_batches": 8}
    return Heartbeat(**{**values, **fields})


class Stage:
    """One namespace of a real store, with a leader."""

    def __init__(self, store):
        self.store = store
        self.ledger = store.ledger
        self.queries = store.queries
        self.sessions = store.sessions
        self.redis = store.redis
        self.keys = store.keys
        self.lead()

    def lead(self, token=LEADER, lease_s=600.0):
        return self.store.leadership(token, lease_s).acquire_or_renew()

    def worker(self, name="gpu0@host", *, instance="", session_id="", **fields):
        """Open a session and beat once; ready unless told otherwise. Returns the session's id."""
        session_id = session_id or f"{name}-{uuid.uuid4().hex[:8]}"
        self.sessions.open(session_id, name, instance or session_id, {"pid": 1})
        self.sessions.beat(session_id, name, heartbeat(**fields))
        return session_id

    def job(self, count=3, *, last=True, **options):
        """Submit a job of so many requests. Returns its id."""
        job_id = str(uuid.uuid4())
        requests = [request() for _ in range(count)]
        self.ledger.submit(job_id, options.pop("model", ""), requests, offset=0, last=last, **options)
        return job_id

    def batch(self, session_id, job_id, indices, *, isolated=False, claimed=True):
        """Assign requests, and claim the batch. Returns its id."""
        batch_id = str(uuid.uuid4())
        assigned = self.ledger.assign(LEADER, session_id, batch_id, job_id, indices, isolated=isolated)
        assert assigned == len(indices)
        if claimed:
            assert self.ledger.claim(batch_id, job_id, session_id) is not None
        return batch_id

    def commit(self, batch_id, job_id, session_id, indices, text=""):
        return self.ledger.commit(batch_id, job_id, session_id, outputs(indices, text))

    def kill(self, session_id, cause=Cause.CRASHED):
        assert self.sessions.expire(session_id, cause, "killed")

    def finished_job(self, count=2):
        """A job whose requests all have outputs; not closed."""
        job_id = self.job(count)
        self.commit("", job_id, "", range(count))
        return job_id

    def age_beat(self, session_id, seconds):
        """Make a session's last beat older."""
        self.redis.zincrby(self.keys.sessions, -int(seconds * 1000), session_id)

    def age_field(self, key, field, seconds):
        """Make a time in a record older."""
        self.redis.hincrby(key, field, -int(seconds * 1000))

    def lose_changes(self):
        """Returns a call that takes back all changes made since, as a Redis that lost its last second does."""
        kept = {key: (self.redis.dump(key), max(self.redis.pttl(key), 0)) for key in self.redis.scan_iter()}

        def lose():
            self.redis.delete(*self.redis.keys())
            for key, (value, ttl_ms) in kept.items():
                self.redis.restore(key, ttl_ms, value)

        return lose

    def session(self, session_id):
        """A session's row in the heartbeat table; None when it is forgotten."""
        return next((row for row in self.sessions.table() if row.id == session_id), None)

    def pending(self, job_id):
        return [item.index for item in self.queries.pending(job_id, 1000)]

    def assigned(self, job_id):
        """Which batch each assigned request of a job is in."""
        found = self.redis.hgetall(self.keys.job(job_id).assigned)
        return {int(index): batch.decode() for index, batch in found.items()}

    def results(self, job_id):
        """The outputs in the job's stream, in the order in which they came."""
        return list(self.store.outputs(job_id).drain())

    def in_hand(self, session_id):
        """A session's counters: requests, tokens, isolated batches."""
        row = self.session(session_id)
        return (row.inhand_requests, row.inhand_tokens, row.isolated)

    def wakes(self):
        """Whether the driver has been woken since the last look."""
        return self.redis.delete(self.keys.wake) == 1

    def has_key(self, key):
        return self.redis.exists(key) == 1


class LeaderlessStage(Stage):
    """The services under test lead, not the stage."""

    def lead(self, *_, **__):
        return 0

"""Nothing lost, nothing twice: random interleavings of every command from several owners, against a real server.

The machine remembers what the ledger promised (outputs accepted, requests submitted, attempts and losses) and compares
the whole ledger with it after every step; at the end it drives all jobs to done and looks that no request is missing.
"""

import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker import codec
from broker.deltas import TextDelta
from broker.errors import JobNotFoundError, WorkerNameTakenError
from broker.ledger import NotLeaderError
from broker.records import BeatReply, Cause, JobRecord, Load
from broker.settings import BrokerSettings
from broker.states import JobState, WorkerState
from broker.store import Store
from driver.ending import end_pending
from tests.support.leaks import leaked_keys
from tests.support.stage import LEADER, Stage, failures, heartbeat, outputs, request

NAMES = ("gpu0@a", "gpu1@a")
MAX_JOBS = 3
MAX_REQUESTS = 12  # of one job


@dataclass
class Job:
    id: str
    user: str = ""
    submitted: int = 0
    sealed: bool = False
    cancelled: bool = False
    lost: bool = False  # its client
    closed: bool = False
    accepted: dict = field(default_factory=dict)  # index -> text
    attempts: dict = field(default_factory=dict)  # of open requests
    losses: dict = field(default_factory=dict)  # of open requests
    failed: int = 0
    dropped: int = 0

    @property
    def done(self):
        return self.sealed and len(self.accepted) == self.submitted


@dataclass
class Batch:
    id: str
    job: Job
    session: str
    isolated: bool
    held: set  # indices that the session still counts as in hand
    claimed: bool = False
    ended: bool = False


@dataclass
class Session:
    id: str
    worker: str
    instance: str
    epoch: int
    state: str = "starting"
    order: str = ""  # the last one of the leader's
    recalled: int = 0  # ordered, and not yet told
    begun: bool = False  # whether the order is for those too that have begun


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, store):
        super().__init__()
        store.redis.flushall()
        self.stage = Stage(store)
        self.store = store
        self.follower = store.waiting()
        self.followed = set()
        self.jobs = {}
        self.batches = {}
        self.sessions = {}
        self.texts = 0

    # What may be chosen from

    def some(self, data, things, **conditions):
        things = [t for t in things.values() if all(getattr(t, name) == value for name, value in conditions.items())]
        return data.draw(st.sampled_from(things)) if things else None

    def some_batch(self, data):
        """A batch, more often one that is still held than one that has ended."""
        held = [batch for batch in self.batches.values() if not batch.ended]
        return data.draw(st.sampled_from(held if held and data.draw(st.integers(0, 3)) else [*self.batches.values()]))

    def held_by(self, session):
        return [batch for batch in self.batches.values() if batch.session == session.id and not batch.ended]

    def some_session_for(self, data, batch):
        """A batch's own session, or sometimes another."""
        return data.draw(
            st.sampled_from([self.sessions[batch.session]] * len(self.sessions) + [*self.sessions.values()])
        )

    def ready_session(self, data):
        """A worker that takes work; there is always one."""
        ready = [session for session in self.sessions.values() if session.state == "ready"]
        return data.draw(st.sampled_from(ready or [self.open_and_beat(NAMES[0], "three")]))

    def indices_of(self, data, job):
        return data.draw(st.lists(st.integers(0, max(job.submitted, 1)), min_size=1, max_size=6))

    # Jobs

    @initialize(count=st.integers(3, 8))
    def begin(self, count):
        self.submit(count, last=False)
        for name in NAMES:
            self.open_and_beat(name, "one")

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(count=st.integers(0, 5), last=st.booleans())
    def submit(self, count, last):
        job = Job(str(uuid.uuid4()), user=f"user {len(self.jobs) % 2}")
        self.jobs[job.id] = job
        self._send(job, 0, count, last)

    @rule(data=st.data(), back=st.integers(0, 3), count=st.integers(0, 3), last=st.sampled_from([False] * 3 + [True]))
    def append(self, data, back, count, last):
        """Send a run; one from further back repeats what was sent before."""
        job = self.some(data, self.jobs, closed=False)
        if job is not None and job.submitted + count <= MAX_REQUESTS:
            self._send(job, max(0, job.submitted - back), count, last)

    def _send(self, job, offset, count, last):
        run = [request(f"{job.id[:4]}-{offset + i}") for i in range(count)]

        def send():
            return self.stage.ledger.submit(job.id, "", run, offset=offset, last=last, user=job.user)

        if job.sealed and offset + count > job.submitted:
            with pytest.raises(JobNotFoundError):
                send()
            return
        if not job.sealed:
            job.submitted = max(job.submitted, offset + count)
            job.sealed = last
        job.lost = job.lost and not (last and offset + count == job.submitted)
        assert send() == job.submitted

    @rule(data=st.data(), heard=st.booleans())
    def abandon(self, data, heard):
        """A client is taken for gone, also one that was heard of since."""
        job = self.some(data, self.jobs, closed=False)
        if job is not None and data.draw(st.integers(0, 2)) == 0:
            touched_ms = self.stage.queries.job(job.id).touched_ms - heard
            gone = not job.sealed and not heard
            assert self.stage.ledger.abandon(job.id, touched_ms) == gone
            job.lost = job.lost or gone
            job.sealed = job.sealed or gone

    @rule(data=st.data())
    def cancel(self, data):
        job = self.some(data, self.jobs, closed=False)
        if job is not None and data.draw(st.integers(0, 2)) == 0:
            assert self.stage.ledger.cancel(job.id) == (not job.done)
            if not job.done:
                job.cancelled, job.lost = True, False
            job.sealed = True

    @rule(data=st.data())
    def end_pending(self, data):
        job = self.some(data, self.jobs, cancelled=True)
        if job is not None:
            for index in self.stage.pending(job.id):
                job.accepted[index] = ""
                job.attempts.pop(index, None)
                job.losses.pop(index, None)
                job.failed += 1
            end_pending(self.store, job.id, "cancelled", "stop")

    @rule(data=st.data())
    def close(self, data):
        job = self.some(data, self.jobs, done=True)
        if job is not None:
            assert self.stage.ledger.close(job.id, 600) == (not job.closed)
            job.closed = True
        for job in self.jobs.values():
            assert not (job.closed and self.stage.has_key(self.stage.keys.job(job.id).deltas))

    # Sessions

    @rule(name=st.sampled_from(NAMES), instance=st.sampled_from(["one", "two"]))
    def open_session(self, name, instance):
        self._open(name, instance)

    def _open(self, name, instance):
        current = max((s for s in self.sessions.values() if s.worker == name), key=lambda s: s.epoch, default=None)
        session_id = uuid.uuid4().hex
        lives = current is not None and current.state not in ("dead", "forgotten")
        if lives and current.instance != instance:
            with pytest.raises(WorkerNameTakenError):
                self.stage.sessions.open(session_id, name, instance, {})
            return None
        epoch = self.stage.sessions.open(session_id, name, instance, {})
        assert epoch == (current.epoch if current else 0) + 1
        if lives:
            current.state = "dead"
        session = self.sessions[session_id] = Session(session_id, name, instance, epoch)
        return session

    def open_and_beat(self, name, instance):
        """A new session under a name, whoever has it now."""
        for session in self.sessions.values():
            if session.worker == name:
                self._expire(session, None)
        session = self._open(name, instance)
        self._beat(session, WorkerState.READY)
        return session

    @rule(data=st.data(), state=st.sampled_from([*[WorkerState.READY] * 4, WorkerState.DRAINING]))
    def beat(self, data, state):
        self._beat(self.some(data, self.sessions), state)

    @rule()
    def all_beat(self):
        for session in self.sessions.values():
            self._beat(session, WorkerState.READY)

    def _beat(self, session, state):
        answer = self.stage.sessions.beat(session.id, session.worker, heartbeat(state=state))
        fenced = session.state in ("dead", "forgotten")
        assert answer.reply is (BeatReply.FENCED if fenced else BeatReply.GO_ON)
        assert answer.recalled == (0 if fenced else session.recalled)
        assert answer.begun == (not fenced and session.begun)
        if not fenced:
            session.state = str(state)
            session.recalled, session.begun = 0, False
        return answer.recalled

    @rule(data=st.data(), count=st.integers(1, 4), order=st.sampled_from("abc"), begun=st.booleans())
    def recall(self, data, count, order, begun):
        """The leader wants requests back: any order, also one that was given before."""
        session = self.some(data, self.sessions)
        taken = session.state not in ("dead", "forgotten") and order != session.order
        assert self.stage.ledger.recall(LEADER, session.id, order, count, begun=begun) == taken
        if taken:
            session.order, session.recalled, session.begun = order, count, begun

    @rule(data=st.data())
    def do_as_ordered(self, data):
        """A worker hears of an order, gives back what it chooses, and may commit the same all the same."""
        session = self.some(data, self.sessions)
        if session.state != "ready":
            return
        recalled, held = self._beat(session, WorkerState.READY), [b for b in self.held_by(session) if b.held]
        if recalled and held:
            batch = data.draw(st.sampled_from(held))
            back = sorted(batch.held)[-recalled:]
            self._release(batch, count_attempt=False, indices=back)
            if data.draw(st.booleans()):
                self._commit(batch, back[:1], fail=False)
            self._finish(batch, session)

    @rule(data=st.data(), judged=st.booleans())
    def expire(self, data, judged):
        session = self.some(data, self.sessions)
        row = self.stage.session(session.id)
        self._expire(session, row.beat_ms if judged and row else None)

    def _expire(self, session, judged_beat_ms):
        alive = session.state not in ("dead", "forgotten")
        assert self.stage.sessions.expire(session.id, Cause.LOST, "silent", judged_beat_ms) == alive
        if alive:
            session.state = "dead"

    @rule(data=st.data(), released=st.booleans())
    def forget(self, data, released):
        """What the leader does with the dead: all at once, or in the wrong order."""
        dead = [session for session in self.sessions.values() if session.state == "dead"]
        if not dead:
            return
        session = data.draw(st.sampled_from([item for item in dead if self.held_by(item)] or dead))
        held = self.held_by(session)
        for batch in held if released else ():
            self._release(batch, count_attempt=True)
        assert self.stage.sessions.forget(self.stage.session(session.id)) == (released or not held)
        if released or not held:
            session.state = "forgotten"

    @rule(data=st.data())
    def be_refused(self, data):
        """A deposed leader, a judgement on an old beat, a run out of order."""
        job, session = self.some(data, self.jobs), self.some(data, self.sessions)
        with pytest.raises(NotLeaderError):
            self.stage.ledger.assign("deposed", session.id, "x", job.id, range(job.submitted))
        with pytest.raises(NotLeaderError):
            self.stage.ledger.recall("deposed", session.id, "x", 1)
        assert not self.stage.sessions.expire(session.id, Cause.LOST, "silent", 1)
        with pytest.raises(JobNotFoundError):
            self.stage.ledger.submit(job.id, "", [request()], offset=job.submitted + 1, last=True)

    # Batches

    @rule(data=st.data(), isolated=st.booleans())
    def assign(self, data, isolated):
        """A stale decision: any requests, to any session."""
        job, session = self.some(data, self.jobs), self.some(data, self.sessions)
        self._assign(job, session, self.indices_of(data, job), isolated)

    @rule(data=st.data(), isolated=st.booleans(), claimed=st.booleans())
    def assign_pending(self, data, isolated, claimed):
        self._assign_pending(data, isolated, claimed)

    @rule(data=st.data())
    def assign_and_claim(self, data):
        self._assign_pending(data, isolated=False, claimed=True)

    def _assign_pending(self, data, isolated, claimed):
        waiting = [job for job in self.jobs.values() if self.stage.pending(job.id)]
        if not waiting:
            return
        job, session = data.draw(st.sampled_from(waiting)), self.ready_session(data)
        batch = self._assign(job, session, self.stage.pending(job.id)[: data.draw(st.integers(1, 4))], isolated)
        if claimed:
            self._claim(batch, session)

    def _assign(self, job, session, indices, isolated):
        batch_id = str(uuid.uuid4())
        pending = set(self.stage.pending(job.id))
        taken = pending & set(indices) if session.state == "ready" else set()
        assert self.stage.ledger.assign(LEADER, session.id, batch_id, job.id, indices, isolated=isolated) == len(taken)
        if taken:
            self.batches[batch_id] = Batch(batch_id, job, session.id, isolated, taken)
        return self.batches.get(batch_id)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def claim(self, data):
        batch = self.some_batch(data)
        self._claim(batch, self.some_session_for(data, batch))

    def _claim(self, batch, session):
        assert self.stage.ledger.claim(batch.id, "another job", session.id) is None
        claimed = self.stage.ledger.claim(batch.id, batch.job.id, session.id)
        refused = batch.ended or session.id != batch.session or session.state in ("dead", "forgotten")
        assert (claimed is None) == refused
        if claimed is None:
            return
        batch.claimed = True
        batch.held = batch.held - set(batch.job.accepted)
        assert [item.index for item in claimed.requests] == sorted(batch.held)
        for item in claimed.requests:
            assert item.request.prompt == f"{batch.job.id[:4]}-{item.index}"
            assert item.attempts == batch.job.attempts.get(item.index, 0)
        assert claimed.cancelled == batch.job.cancelled

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def checkpoint_and_publish(self, data):
        batch = self.some_batch(data)
        indices = set(self.indices_of(data, batch.job))
        session_id = self.some_session_for(data, batch).id
        refused = batch.ended or session_id != batch.session
        mine = set() if refused else indices & batch.held - set(batch.job.accepted)
        saved = self.stage.ledger.checkpoint(batch.id, batch.job.id, session_id, dict.fromkeys(indices, (1, 2)))
        assert saved == len(mine)
        pieces = [TextDelta(index=index, offset=0, text="x") for index in indices]
        assert self.stage.ledger.publish(batch.id, batch.job.id, session_id, pieces) == len(mine)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), fail=st.booleans())
    def commit(self, data, fail):
        """Any batch that ever was, also one of a fenced session, and any requests, also twice."""
        batch = self.some_batch(data)
        self._commit(batch, self.indices_of(data, batch.job), fail)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def commit_what_another_holds(self, data):
        """A fenced worker's output comes after its request was given to another."""
        batch = self.some_batch(data)
        late = self.some(data, {other.id: other for other in self.batches.values() if other.job is batch.job})
        if batch.held:
            self._commit(late, sorted(batch.held)[:1], fail=False)
            self._claim(batch, self.sessions[batch.session])

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def run_a_batch(self, data):
        """The normal life of a batch, to its end."""
        batch = self.some_batch(data)
        self._claim(batch, self.sessions[batch.session])
        if batch.held:
            self._commit(batch, sorted(batch.held), fail=False)
        self._finish(batch, self.sessions[batch.session])

    def _commit(self, batch, indices, fail):
        job = batch.job
        self.texts += 1
        text = f"output {self.texts}"
        done_before = job.done
        result = self.stage.ledger.commit(
            batch.id, job.id, batch.session, failures(indices) if fail else outputs(indices, text)
        )
        fresh = {index for index in indices if index < job.submitted and index not in job.accepted}
        job.accepted |= dict.fromkeys(fresh, "" if fail else text)
        for index in fresh:
            job.attempts.pop(index, None)
            job.losses.pop(index, None)
        job.failed += len(fresh) if fail else 0
        job.dropped += len(indices) - len(fresh)
        batch.held -= set(indices)
        assert (result.accepted, result.dropped) == (len(fresh), len(indices) - len(fresh))
        assert result.job_done == (job.done and not done_before)

    @rule(data=st.data(), fail=st.booleans())
    def commit_all_that_is_left_of_a_job(self, data, fail):
        """Without a worker, as the leader does; the job may still be open."""
        job = self.some(data, self.jobs)
        left = [index for index in range(job.submitted) if index not in job.accepted]
        if left and data.draw(st.integers(0, 2)) == 0:
            self._commit(Batch("", job, "", isolated=False, held=set(), ended=True), left, fail)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def finish(self, data):
        batch = self.some_batch(data)
        self._finish(batch, self.some_session_for(data, batch))

    def _finish(self, batch, session):
        mine = not batch.ended and session.id == batch.session
        assert self.stage.ledger.finish(batch.id, session.id) == (len(batch.held) if mine else 0)
        if mine and not batch.held:
            batch.ended = True

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), count_attempt=st.booleans(), forgiven=st.integers(0, 2), some=st.booleans())
    def release(self, data, count_attempt, forgiven, some):
        batch = self.some_batch(data)
        indices = self.indices_of(data, batch.job) if some else ()
        self._release(batch, count_attempt, indices, forgiven)

    def _release(self, batch, count_attempt, indices=(), forgiven=0):
        freed = set() if batch.ended else batch.held & set(indices or batch.held)
        again = freed - set(batch.job.accepted)
        released = self.stage.ledger.release(
            batch.id, batch.job.id, batch.session, count_attempt=count_attempt, forgiven=forgiven, indices=indices
        )
        assert released == len(again)
        for index in again if count_attempt and batch.claimed else ():
            if forgiven:
                batch.job.losses[index] = batch.job.losses.get(index, 0) + 1
            if not forgiven or batch.job.losses[index] > forgiven:
                batch.job.attempts[index] = batch.job.attempts.get(index, 0) + 1
        batch.held -= freed
        batch.ended = batch.ended or not indices

    # What must hold after every step

    @invariant()
    def jobs_are_whole(self):
        for job in self.jobs.values():
            found = self._read(job)
            everything = set(range(job.submitted))
            waiting = everything - set(job.accepted)
            assert sorted([*found.pending, *found.assigned]) == sorted(waiting), "each request is in exactly one state"
            assert found.pending == sorted(found.pending), "what comes back goes to its old place"
            for index, batch_id in found.assigned.items():
                batch = self.batches[batch_id.decode()]
                assert not batch.ended
                assert index in batch.held
                assert self.sessions[batch.session].state != "forgotten"
            assert found.bits == set(job.accepted)
            assert {item.index: item.text for item in found.outputs} == job.accepted, "the first output is the output"
            assert len(found.outputs) == len(job.accepted), "no output twice"
            record = found.record
            assert (record.submitted, record.done) == (job.submitted, len(found.outputs))
            assert (record.failed, record.dropped) == (job.failed, job.dropped)
            assert record.completion_tokens == 2 * (len(found.outputs) - job.failed)
            state = JobState.DONE if job.done else JobState.RUNNING if job.sealed else JobState.OPEN
            assert (record.state, record.cancelled, record.client_lost) == (state, job.cancelled, job.lost)
            assert found.requests == found.costs == waiting
            assert (found.attempts, found.losses) == (job.attempts, job.losses)
            assert found.checkpoints <= waiting

    def _read(self, job):
        """Everything that the ledger holds of a job."""
        keys = self.stage.keys.job(job.id)
        pipeline = self.stage.redis.pipeline(transaction=False)
        pipeline.hgetall(keys.record)
        pipeline.zrange(keys.pending, 0, -1)
        pipeline.hgetall(keys.assigned)
        pipeline.get(keys.committed)
        pipeline.hkeys(keys.requests)
        pipeline.hkeys(keys.costs)
        pipeline.hgetall(keys.attempts)
        pipeline.hkeys(keys.checkpoints)
        pipeline.hgetall(keys.losses)
        record, pending, assigned, bits, requests, costs, attempts, checkpoints, losses = pipeline.execute()
        return SimpleNamespace(
            record=codec.from_fields(JobRecord, record),
            pending=[int(index) for index in pending],
            assigned={int(index): batch_id for index, batch_id in assigned.items()},
            bits={8 * at + bit for at, byte in enumerate(bits or b"") for bit in range(8) if byte & (128 >> bit)},
            outputs=list(self.stage.store.outputs(job.id).drain()),
            requests={int(index) for index in requests},
            costs={int(index) for index in costs},
            attempts={int(index): int(count) for index, count in attempts.items()},
            checkpoints={int(index) for index in checkpoints},
            losses={int(index): int(count) for index, count in losses.items()},
        )

    @invariant()
    def tables_list_what_is_open(self):
        open_jobs = {job.id for job in self.jobs.values() if not job.closed}
        assert {job.id for job in self.stage.queries.open_jobs()} == open_jobs
        waiting = {job.id for job in self.jobs.values() if self.stage.pending(job.id)}
        assert {job.id for job in self.stage.queries.waiting_jobs()} == waiting
        noted = self.stage.redis.exists(self.stage.keys.waiting_changes)
        with pytest.MonkeyPatch.context() as patch:
            if self.followed and noted:
                patch.setattr(self.follower, "_read_all", None)  # every change was noted
            changes = self.follower.read()
        self.followed = (self.followed | {job.id for job in changes.joined}) - changes.left
        assert self.followed == waiting
        stopping = {job.id for job in self.jobs.values() if job.cancelled and not job.closed}
        assert self.stage.queries.stopping_jobs(self.stage.queries.server_time_ms()) == stopping
        closing = {job.id for job in self.jobs.values() if job.done and not job.closed}
        assert {job_id for job_id, _ in self.stage.queries.closing_jobs()} == closing

    @invariant()
    def what_waits_is_counted(self):
        for user in (None, "user 0", "user 1"):
            jobs = [job for job in self.jobs.values() if user in (None, job.user)]
            costs = [
                int(c.split()[0]) for job in jobs for c in self.stage.redis.hvals(self.stage.keys.job(job.id).costs)
            ]
            found = self.stage.queries.load(user)
            assert (found.requests, found.tokens) == (
                sum(job.submitted - len(job.accepted) for job in jobs),
                sum(costs),
            )

    @invariant()
    def sessions_count_what_they_hold(self):
        rows = {row.id: row for row in self.stage.sessions.table()}
        assert set(rows) == {s.id for s in self.sessions.values() if s.state != "forgotten"}
        for row in rows.values():
            held = [b for b in self.batches.values() if b.session == row.id and not b.ended]
            assert row.state == self.sessions[row.id].state
            assert row.inhand_requests == sum(len(b.held) for b in held)
            costs = [int(c) for b in held for c in self.stage.redis.hvals(self.stage.keys.batch(b.id).requests)]
            assert (row.inhand_tokens, len(costs)) == (sum(costs), row.inhand_requests)
            assert row.isolated == sum(b.isolated for b in held)
            assert {b.id for b in self.stage.queries.batches(row.id)} == {b.id for b in held}

    def teardown(self):
        """Every worker dies and is recovered from; one new worker then does what is left."""
        for session in self.sessions.values():
            self._expire(session, None)
        for batch in self.batches.values():
            self._release(batch, count_attempt=True)
        for job in self.jobs.values():
            self._send(job, job.submitted, 0, last=True)
        last = self.open_and_beat(NAMES[0], "last")
        for job in self.jobs.values():
            self._assign(job, last, range(job.submitted), isolated=True)
        for batch in [b for b in self.batches.values() if not b.ended]:
            self._claim(batch, last)
            self._commit(batch, sorted(batch.held), fail=False)
            assert self.stage.ledger.finish(batch.id, last.id) == 0
            batch.ended = True
        for job in self.jobs.values():
            assert sorted(item.index for item in self.stage.results(job.id)) == list(range(job.submitted)), "none lost"
            self.stage.ledger.close(job.id, 600)
            job.closed = True
        self.jobs_are_whole()
        self.tables_list_what_is_open()
        self.what_waits_is_counted()
        assert self.stage.queries.load() == Load()
        self.sessions_count_what_they_hold()
        assert leaked_keys(self.store) == []


@pytest.mark.timeout(600)  # some 10 s, and many times that on a busy machine
def test_nothing_is_lost_and_nothing_comes_twice(server):
    store = Store(BrokerSettings(broker_url=server.url, namespace="model"))
    try:
        run_state_machine_as_test(
            lambda: LedgerMachine(store),
            settings=settings(
                max_examples=60,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert leaked_keys(store) == [], "of none of the runs"
    finally:
        store.close()

"""Identical requests under random interleavings: none lost, none answered twice, each with the text of its like.

Jobs of few different prompts, greedy and not, are fed in run by run, with limits and a result cache that change, while
their requests are assigned, answered, failed, released, answered late and cancelled.
"""

import uuid
from dataclasses import dataclass, field

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

from broker.costs import estimated_tokens
from broker.errors import QueueFullError
from broker.messages import OutputSource
from broker.records import Load, Policy
from broker.settings import BrokerSettings
from broker.states import JobState
from broker.store import Store
from driver.ending import end_pending
from tests.support.leaks import leaked_keys
from tests.support.stage import LEADER, Stage, failures, output, request

PROMPTS = ("a", "bb bb bb bb bb", "c")
KINDS = st.lists(st.tuples(st.sampled_from(PROMPTS), st.booleans()), max_size=5)  # prompt, greedy
USERS = ("ann", "bob")


@dataclass
class Job:
    id: str
    user: str
    kinds: list = field(default_factory=list)
    sealed: bool = False
    cancelled: bool = False
    reserved: int = 0
    reserved_tokens: int = 0

    def take(self, kinds):
        self.kinds += kinds
        self.reserved = max(0, self.reserved - len(kinds))
        self.reserved_tokens = max(0, self.reserved_tokens - sum(map(cost, kinds)))

    def seal(self):
        self.sealed = True
        self.reserved = self.reserved_tokens = 0


def as_request(kind):
    prompt, greedy = kind
    return request(prompt, temperature=0 if greedy else 1)


def cost(kind):
    return estimated_tokens(as_request(kind))


class SharingMachine(RuleBasedStateMachine):
    def __init__(self, store):
        super().__init__()
        store.redis.flushall()
        self.stage = Stage(store)
        self.store = store
        self.jobs = []
        self.batches = []  # (batch, job, session, indices)
        self.texts = 0

    @initialize()
    def begin(self):
        self.session = self.stage.worker(model="m")

    @rule(cache=st.booleans(), share=st.booleans(), most=st.sampled_from([0, 0, 6]), tokens=st.sampled_from([0, 60]))
    def configure(self, cache, share, most, tokens):
        policy = Policy(
            max_pending_requests=most,
            max_user_pending_tokens=tokens,
            share_identical=share,
            result_cache_ttl=60 if cache else 0,
        )
        self.stage.ledger.configure(LEADER, policy)

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(kinds=KINDS, last=st.booleans(), announced=st.integers(0, 6))
    def submit(self, kinds, last, announced):
        job = Job(str(uuid.uuid4()), USERS[len(self.jobs) % 2])
        if self._send(job, kinds, last, max(announced, len(kinds)) if announced else 0):
            self.jobs.append(job)

    @precondition(lambda self: any(not job.sealed for job in self.jobs))
    @rule(data=st.data(), kinds=KINDS, last=st.booleans(), again=st.booleans())
    def append(self, data, kinds, last, again):
        job = data.draw(st.sampled_from([job for job in self.jobs if not job.sealed]))
        if self._send(job, kinds, last, 0) and again and not last:
            offset = len(job.kinds) - len(kinds)
            assert self.stage.ledger.submit(job.id, "m", self._run(kinds), offset=offset, last=False) == len(job.kinds)

    def _run(self, kinds):
        return [as_request(kind) for kind in kinds]

    def _send(self, job, kinds, last, announced):
        run = self._run(kinds)
        before = self._counters()
        try:
            self.stage.ledger.submit(
                job.id, "m", run, offset=len(job.kinds), last=last, user=job.user, announced=(announced, 20 * announced)
            )
        except QueueFullError as full:
            assert full.fill + full.wanted > full.most
            assert self._counters() == before
            if announced or not full.fits:
                return False
            self.stage.ledger.submit(
                job.id, "m", run[: full.fits], offset=len(job.kinds), last=False, user=job.user
            )  # what is said to fit does
            job.take(kinds[: full.fits])
            return True
        job.reserved += announced
        job.reserved_tokens += 20 * announced
        job.take(kinds)
        if last:
            job.seal()
        return True

    def _counters(self):
        return [self.stage.queries.load(user) for user in (None, *USERS)]

    @rule(data=st.data(), count=st.integers(1, 4))
    def assign(self, data, count):
        waiting = [job for job in self.jobs if self.stage.pending(job.id)]
        if waiting:
            job = data.draw(st.sampled_from(waiting))
            indices = self.stage.pending(job.id)[:count]
            self.batches.append((self.stage.batch(self.session, job.id, indices), job, self.session, indices))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), fail=st.booleans(), whole=st.booleans())
    def commit(self, data, fail, whole):
        """Of any batch that ever was, also twice, also after it was released; its first, or all."""
        batch, job, session, indices = data.draw(st.sampled_from(self.batches))
        self._commit(batch, job, session, indices if whole else indices[:1], fail=fail)

    def _commit(self, batch, job, session, indices, fail):
        self.texts += 1
        outputs = failures(indices) if fail else [self._answer(job, index) for index in indices]
        self.stage.ledger.commit(batch, job.id, session, outputs)

    def _answer(self, job, index):
        prompt, greedy = job.kinds[index] if index < len(job.kinds) else ("", False)
        return output(index, f"{prompt} {greedy} {self.texts}")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def commit_for_any(self, data):
        """What nobody asked for: an output for a request that waits for another, or has one, or does not exist."""
        job = data.draw(st.sampled_from(self.jobs))
        self._commit("", job, "", [data.draw(st.integers(0, len(job.kinds)))], fail=False)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def release(self, data):
        batch, job, session, _ = data.draw(st.sampled_from(self.batches))
        self.stage.ledger.release(batch, job.id, session, count_attempt=True)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), often=st.integers(0, 3))
    def cancel(self, data, often):
        job = data.draw(st.sampled_from(self.jobs))
        if often == 0:
            self.stage.ledger.cancel(job.id)
            job.seal()
            job.cancelled = True
            end_pending(self.store, job.id, "cancelled", "stop")

    @invariant()
    def each_request_is_in_one_place(self):
        open_requests, open_tokens = dict.fromkeys(USERS, 0), dict.fromkeys(USERS, 0)
        for job in self.jobs:
            keys = self.stage.keys.job(job.id)
            pending, assigned = self.stage.pending(job.id), list(self.stage.assigned(job.id))
            followers = {
                int(f): int(lead) for f, lead in self.stage.redis.zrange(keys.followers, 0, -1, withscores=True)
            }
            outputs = self.stage.results(job.id)
            done = [item.index for item in outputs]
            assert sorted([*pending, *assigned, *followers, *done]) == list(range(len(job.kinds)))
            for follower, lead in followers.items():
                assert lead in pending or lead in assigned
                assert job.kinds[follower] == job.kinds[lead] == (job.kinds[lead][0], True)
            self._outputs_fit(job, outputs)
            record = self.stage.queries.job(job.id)
            assert (record.submitted, record.done) == (len(job.kinds), len(done))
            assert record.failed == sum(item.error is not None for item in outputs)
            sources = [item.source for item in outputs]
            counts = (sources.count(OutputSource.SHARED), sources.count(OutputSource.CACHE))
            assert (record.shared, record.cached) == counts
            own = sum(item.usage.completion_tokens for item in outputs if item.source == OutputSource.GENERATED)
            all_tokens = sum(item.usage.completion_tokens for item in outputs)
            assert (record.completion_tokens, record.saved_completion_tokens) == (own, all_tokens - own)
            whole = job.sealed and len(done) == len(job.kinds)
            assert (record.state == JobState.DONE) == whole
            open_requests[job.user] += len(job.kinds) - len(done) + job.reserved
            open_tokens[job.user] += sum(cost(job.kinds[i]) for i in (*pending, *assigned)) + job.reserved_tokens
        counters = self._counters()
        assert [found.requests for found in counters] == [sum(open_requests.values()), *open_requests.values()]
        assert [found.tokens for found in counters] == [sum(open_tokens.values()), *open_tokens.values()]

    def _outputs_fit(self, job, outputs):
        for item in outputs:
            prompt, greedy = job.kinds[item.index]
            assert item.error is not None or item.text.startswith(f"{prompt} {greedy} ")
            assert greedy or item.source == OutputSource.GENERATED

    def teardown(self):
        """Everything is sealed, taken back and answered."""
        self.stage.ledger.configure(LEADER, Policy())
        for batch, job, session, _ in self.batches:
            self.stage.ledger.release(batch, job.id, session, count_attempt=False)
        for job in self.jobs:
            if not job.sealed:
                self._send(job, [], last=True, announced=0)
            self._commit("", job, "", self.stage.pending(job.id), fail=False)
            assert sorted(item.index for item in self.stage.results(job.id)) == list(range(len(job.kinds)))
            keys = self.stage.keys.job(job.id)
            assert not [
                k
                for k in (keys.leaders, keys.digests, keys.followers, keys.costs, keys.requests)
                if self.stage.has_key(k)
            ]
        self.each_request_is_in_one_place()
        assert self._counters() == [Load()] * 3
        for job in self.jobs:
            self.stage.ledger.close(job.id, 600)
        assert leaked_keys(self.store) == []


@pytest.mark.timeout(600)  # a few seconds, and many times that on a busy machine
def test_identical_requests_are_answered_once_each(server):
    store = Store(BrokerSettings(broker_url=server.url, namespace="sharing"))
    try:
        run_state_machine_as_test(
            lambda: SharingMachine(store),
            settings=settings(
                max_examples=15,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert leaked_keys(store) == [], "of none of the runs"
    finally:
        store.close()

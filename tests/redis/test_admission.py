"""Limits on what may wait: a submission beyond one is refused as a whole, and the counters come back to zero."""

import math
import time
import uuid

import pytest

from broker.errors import ExceedsLimitError, QueueFullError
from broker.ledger import NotLeaderError
from broker.messages import Request, SamplingParams
from broker.records import Load, Policy
from driver.client import Client
from driver.feed import JobFeed
from driver.room import MAX_PAUSE_S, MIN_PAUSE_S, Room
from driver.runs import RUN_REQUESTS
from tests.support.clock import FakeClock
from tests.support.racing import race
from tests.support.stage import COST, LEADER, request


@pytest.fixture
def limit(stage):
    """Sets limits for all."""

    def set_limits(**limits):
        stage.ledger.configure(LEADER, Policy(**limits))

    return set_limits


@pytest.fixture
def client(settings, stage):
    with Client(settings=settings) as client:
        yield client


def submit(stage, count, *, offset=0, job_id=None, last=True, user="", announced=(0, 0), tokens=10):
    job_id = job_id or str(uuid.uuid4())
    requests = [request(max_tokens=tokens) for _ in range(count)]
    stage.ledger.submit(job_id, "", requests, offset=offset, last=last, user=user, announced=announced)
    return job_id


def load(stage, user=None):
    found = stage.queries.load(user)
    return found.requests, found.tokens


def test_what_waits_and_what_runs_is_counted(stage):
    session, job = stage.worker(), submit(stage, 3, user="ann")
    assert load(stage) == load(stage, "ann") == (3, 3 * COST)
    batch = stage.batch(session, job, [0, 1])
    assert load(stage) == (3, 3 * COST)
    stage.commit(batch, job, session, [0])
    assert load(stage) == load(stage, "ann") == (2, 2 * COST)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert load(stage) == (2, 2 * COST)
    stage.commit("", job, "", [0, 1, 2])
    assert load(stage) == load(stage, "ann") == (0, 0)


def test_users_are_counted_apart_and_forgotten_when_nothing_of_theirs_is_left(stage):
    jobs = {user: submit(stage, count, user=user) for user, count in (("ann", 1), ("bob", 2), ("", 3))}
    assert [load(stage, user)[0] for user in jobs] == [1, 2, 3]
    for user, job in jobs.items():
        stage.commit("", job, "", range(3))
        assert load(stage, user) == (0, 0)
    fields = {name.decode() for name in stage.redis.hkeys(stage.keys.load)}
    assert fields == {"requests", "tokens", "speed_sum", "speed_ms", "speed_since_ms"}


def test_a_run_sent_twice_counts_once(stage):
    job = submit(stage, 2, last=False)
    submit(stage, 2, job_id=job, last=False)
    submit(stage, 2, job_id=job, offset=1)
    assert load(stage) == (3, 3 * COST)
    race(*[lambda: stage.commit("", job, "", [0, 1, 2])] * 4)
    assert load(stage) == (0, 0)


def test_a_job_of_a_version_without_limits_counts_for_nothing(stage):
    job = submit(stage, 2)
    stage.redis.hdel(stage.keys.job(job).record, "user")
    stage.redis.delete(stage.keys.load)
    stage.commit("", job, "", [0, 1])
    assert load(stage) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "name", "most", "fill", "wanted", "fits"),
    [
        ({"max_pending_requests": 5}, "max_pending_requests", 5, 4, 3, 1),
        ({"max_pending_tokens": 6 * COST + 1}, "max_pending_tokens", 6 * COST + 1, 4 * COST, 3 * COST, 2),
        ({"max_user_pending_requests": 2}, "max_user_pending_requests", 2, 1, 3, 1),
        ({"max_user_pending_tokens": 3 * COST}, "max_user_pending_tokens", 3 * COST, COST, 3 * COST, 2),
    ],
)
def test_a_submission_beyond_a_limit_is_refused_as_a_whole(stage, limit, limits, name, most, fill, wanted, fits):
    submit(stage, 3, user="bob")
    submit(stage, 1, user="ann")
    limit(**limits)
    job = str(uuid.uuid4())
    with pytest.raises(QueueFullError, match=f"at most {most} may \\({name}\\): no room for {wanted} more") as refusal:
        submit(stage, 3, job_id=job, user="ann")
    error = refusal.value
    assert (error.limit, error.most, error.fill, error.wanted) == (name, most, fill, wanted)
    assert (error.fits, error.retry_after_s, error.retryable) == (fits, None, True)
    assert not stage.has_key(stage.keys.job(job).record)
    assert load(stage) == (4, 4 * COST)
    submit(stage, fits, job_id=job, user="ann")
    assert load(stage, "ann") == (1 + fits, (1 + fits) * COST)


def test_of_a_run_that_came_in_part_what_is_there_needs_no_room(stage, limit):
    job = submit(stage, 2, last=False)
    limit(max_pending_requests=3)
    with pytest.raises(QueueFullError) as refusal:
        submit(stage, 4, job_id=job)
    assert (refusal.value.wanted, refusal.value.fits) == (2, 3)
    submit(stage, 3, job_id=job)
    assert load(stage)[0] == 3


def test_a_client_that_is_refused_is_not_gone(stage, limit):
    job = submit(stage, 1, last=False)
    limit(max_pending_requests=1)
    stage.age_field(stage.keys.job(job).record, "touched_ms", 600)
    with pytest.raises(QueueFullError):
        submit(stage, 1, job_id=job, offset=1)
    assert stage.queries.server_time_ms() - stage.queries.job(job).touched_ms < 300_000


def test_another_user_has_room_where_one_has_none(stage, limit):
    limit(max_user_pending_requests=2)
    submit(stage, 2, user="ann")
    with pytest.raises(QueueFullError, match="2 requests of user 'ann' wait"):
        submit(stage, 1, user="ann")
    submit(stage, 2, user="bob")
    submit(stage, 2)
    with pytest.raises(QueueFullError, match="2 requests without a user wait"):
        submit(stage, 1)


def test_the_limit_that_can_never_be_kept_is_named_first(stage, limit):
    limit(max_pending_requests=1, max_user_pending_tokens=COST + 1)
    submit(stage, 1)
    with pytest.raises(QueueFullError) as refusal:
        submit(stage, 1, tokens=100)
    assert refusal.value.limit == "max_user_pending_tokens"


def test_room_comes_back_with_outputs(stage, limit):
    limit(max_pending_requests=2)
    job = submit(stage, 2)
    with pytest.raises(QueueFullError):
        submit(stage, 1)
    stage.commit("", job, "", [1])
    submit(stage, 1)


def test_many_at_once_do_not_get_beyond_a_limit(stage, limit):
    limit(max_pending_requests=10)

    def attempt():
        try:
            submit(stage, 3)
        except QueueFullError:
            return 0
        return 1

    assert sum(race(*[attempt] * 8)) == 3
    assert load(stage) == (9, 9 * COST)


def test_a_full_queue_does_not_keep_a_job_from_being_sealed(stage, limit):
    job = submit(stage, 2, last=False)
    limit(max_pending_requests=1)
    submit(stage, 0, job_id=job, offset=2)
    assert stage.queries.job(job).state == "running"


def test_the_time_to_wait_comes_from_the_speed(stage, limit):
    submit(stage, 90, user="bob")
    job = submit(stage, 10, user="ann", last=False)
    limit(max_user_pending_requests=10)
    began_s = time.monotonic()
    stage.commit("", job, "", [0])
    stage.redis.hincrby(stage.keys.load, "speed_since_ms", -10_000)
    stage.redis.hincrby(stage.keys.load, "speed_ms", -10_000)
    stage.commit("", job, "", [1, 2])
    stage.redis.hincrby(stage.keys.load, "speed_ms", -1)  # an age above zero
    with pytest.raises(QueueFullError, match="try again in") as refusal:
        submit(stage, 5, job_id=job, offset=10, user="ann")
    # Two requests in ten seconds, and those that the test takes, for all, of which ann has 7 of 97; two must go.
    took_s = time.monotonic() - began_s
    least, most = (
        2 * COST / (2 * COST / 30 / (1 - math.exp(-seen_s / 30)) * math.exp(-idle_s / 30) * 7 / 97)
        for seen_s, idle_s in ((10, 0), (10 + took_s, took_s))
    )
    assert 0.98 * least < refusal.value.retry_after_s < 1.02 * most
    stage.redis.hincrby(stage.keys.load, "speed_ms", -300_000)  # too old to go by
    with pytest.raises(QueueFullError) as refusal:
        submit(stage, 5, job_id=job, offset=10, user="ann")
    assert refusal.value.retry_after_s is None


# Jobs that are admitted as a whole


@pytest.mark.parametrize("limits", [{"max_pending_requests": 10}, {"max_pending_tokens": 10 * COST}])
def test_an_announced_job_has_its_room_from_the_start(stage, limit, limits):
    limit(**limits)
    job = submit(stage, 2, last=False, announced=(8, 8 * COST))
    assert load(stage) == (8, 8 * COST)
    with pytest.raises(QueueFullError):
        submit(stage, 3)
    submit(stage, 2)
    submit(stage, 6, job_id=job, offset=2)
    assert load(stage) == (10, 10 * COST)
    stage.commit("", job, "", range(8))
    assert load(stage) == (2, 2 * COST)


def test_an_announced_job_is_refused_before_anything_of_it_is_taken(stage, limit):
    limit(max_pending_requests=10)
    submit(stage, 5)
    job = str(uuid.uuid4())
    with pytest.raises(QueueFullError, match="no room for 6 more"):
        submit(stage, 2, job_id=job, last=False, announced=(6, 6 * COST))
    assert not stage.has_key(stage.keys.job(job).record)


@pytest.mark.parametrize("ends", [("seal", "seal"), ("cancel", "cancel"), ("seal", "cancel")])
def test_what_was_announced_and_did_not_come_waits_no_more(stage, ends):
    job = submit(stage, 2, last=False, announced=(8, 8 * COST), user="ann")
    for end in ends:
        if end == "seal":
            submit(stage, 0, job_id=job, offset=2)
        else:
            stage.ledger.cancel(job)
        assert load(stage) == load(stage, "ann") == (2, 2 * COST)
    stage.commit("", job, "", [0, 1])
    assert load(stage) == load(stage, "ann") == (0, 0)


def test_tokens_without_requests_are_counted(stage):
    job = submit(stage, 0, last=False, announced=(0, 5), user="ann")
    assert load(stage, "ann") == (0, 5)
    submit(stage, 0, job_id=job)
    assert load(stage) == load(stage, "ann") == (0, 0)


def test_outputs_before_the_seal_leave_what_was_announced(stage):
    job = submit(stage, 2, last=False, announced=(3, 4 * COST), user="ann")
    stage.commit("", job, "", [0, 1])
    assert load(stage, "ann") == (1, 2 * COST)
    submit(stage, 1, job_id=job, offset=2, last=False)
    stage.commit("", job, "", [2])
    assert load(stage, "ann") == (0, COST)
    submit(stage, 0, job_id=job, offset=3)
    assert load(stage) == load(stage, "ann") == (0, 0)


def test_only_the_leader_sets_limits(stage):
    stage.ledger.configure(LEADER, Policy(max_pending_requests=3, max_user_pending_tokens=4))
    with pytest.raises(NotLeaderError):
        stage.ledger.configure("deposed", Policy())
    assert stage.queries.policy() == Policy(max_pending_requests=3, max_user_pending_tokens=4)


# The client


def test_a_client_without_patience_is_told_at_once(client, stage, limit):
    limit(max_pending_requests=RUN_REQUESTS + 4)
    client.submit(["a"] * 5)
    with pytest.raises(QueueFullError):
        client.submit(["a"] * (RUN_REQUESTS + 1))
    assert stage.queries.load().requests == 5
    assert len(stage.queries.open_jobs()) == 1
    with pytest.raises(ExceedsLimitError, match="block=True"):
        client.submit(["a"] * (RUN_REQUESTS + 5))
    client.submit(["a"] * (RUN_REQUESTS - 1))
    with pytest.raises(QueueFullError):
        client.submit(["a"])


@pytest.mark.parametrize("block", [False, True])
def test_an_interrupted_submission_leaves_nothing(client, stage, limit, monkeypatch, block):
    limit(max_pending_requests=2 * RUN_REQUESTS)
    send = stage.ledger.submit
    runs = []

    def interrupted(*args, **options):
        runs.append(send(*args, **options))
        if len(runs) == 2:
            raise KeyboardInterrupt  # and the reply is lost

    monkeypatch.setattr(client.store.ledger, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.submit(["a"] * 2 * RUN_REQUESTS, block=block)
    assert [job.cancelled or job.done for job in stage.queries.open_jobs()] == [True]
    assert load(stage) == (0, 0)


class Worker:
    """Answers the first open requests whenever the client sleeps."""

    def __init__(self, stage, at_once):
        self._stage = stage
        self._at_once = at_once
        self.most = 0
        self.pauses = []

    def now_s(self):
        return 0.0

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.most = max(self.most, self._stage.queries.load().requests)
        for job in self._stage.queries.open_jobs():
            self._stage.commit("", job.id, "", self._stage.pending(job.id)[: self._at_once])


def feed(stage, room, **options):
    return JobFeed(stage.ledger, str(uuid.uuid4()), "", room=room, **options)


def test_a_job_larger_than_the_limit_is_fed_in_as_there_is_room(stage, limit):
    limit(max_pending_requests=10)
    worker = Worker(stage, 4)
    job = feed(stage, Room(clock=worker))
    job.add_and_seal([request()] * 33)
    assert worker.most == 10
    assert all(MIN_PAUSE_S <= pause <= MAX_PAUSE_S for pause in worker.pauses)
    stage.commit("", job.job_id, "", stage.pending(job.job_id))
    record = stage.queries.job(job.job_id)
    assert (record.state, record.submitted, record.done) == ("done", 33, 33)
    assert load(stage) == (0, 0)


def test_waiting_ends_in_time(stage, limit):
    limit(max_pending_requests=2)
    clock = FakeClock()
    started_s = clock.now_s()
    job = feed(stage, Room(1.5, clock))
    with pytest.raises(QueueFullError):
        job.add_and_seal([request()] * 3)
    assert clock.now_s() == started_s + 1.5
    assert job.submitted == 2


def test_a_blocking_submission_that_ends_in_vain_leaves_nothing(client, stage, limit):
    limit(max_pending_requests=2)
    with pytest.raises(QueueFullError):
        client.submit(["a"] * 3, block=True, timeout=0)
    assert load(stage) == (0, 0)
    assert [job.cancelled for job in stage.queries.open_jobs()] == [True]


def test_a_request_that_can_never_be_taken_is_refused_at_once(stage, limit):
    limit(max_pending_tokens=5 * COST)
    job = feed(stage, Room(clock=FakeClock()))
    with pytest.raises(ExceedsLimitError, match="can never be taken"):
        job.add([request(), request(max_tokens=100), request()])
    assert job.submitted == 1


def test_an_offer_takes_what_fits_and_says_why_not_more(stage, limit):
    limit(max_pending_requests=3)
    job = feed(stage, None)
    full = job.offer([request()] * 5)
    assert (full.limit, job.submitted) == ("max_pending_requests", 3)
    assert job.offer([request()]).fill == 3
    stage.commit("", job.job_id, "", [0])
    assert job.offer([request()]) is None
    assert job.submitted == 4


def test_adding_without_patience_is_refused_by_the_run(stage, limit):
    limit(max_pending_requests=3)
    job = feed(stage, None)
    job.add([request()] * 2)
    with pytest.raises(QueueFullError):
        job.add([request()] * 2)
    with pytest.raises(ExceedsLimitError, match="add fewer"):
        job.add([request()] * 4)
    assert job.submitted == 2
    assert stage.queries.load() == Load(requests=2, tokens=2 * COST)


def test_a_limit_that_was_lowered_refuses_nothing_that_adds_nothing_to_it(stage, limit):
    """Of identical requests only the first one's tokens count."""
    same = Request(params=SamplingParams(temperature=0, max_tokens=50), prompt="the same")
    stage.ledger.submit("job", "", [same], offset=0, last=False, user="ann")
    limit(max_user_pending_tokens=10)

    assert stage.ledger.submit("job", "", [same, same], offset=1, last=True, user="ann") == 3
    with pytest.raises(QueueFullError, match="max_user_pending_tokens"):
        stage.ledger.submit("other", "", [same], offset=0, last=True, user="ann")

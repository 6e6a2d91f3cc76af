"""Prompts of any number through a bounded window: what is in Redis never grows beyond it."""

import itertools

import pytest

from broker.errors import ExceedsLimitError, InvalidRequestError
from broker.messages import OutputSource, SamplingParams
from broker.records import Policy
from driver.client import Client
from driver.errors import NotFinishedError
from driver.feed import JobFeed
from driver.window import WindowedOutputs
from tests.support.clock import FakeClock
from tests.support.stage import LEADER, request

SAMPLED = SamplingParams(max_tokens=4)


@pytest.fixture
def client(settings, stage):
    with Client(settings=settings) as client:
        yield client


@pytest.fixture
def answer(stage):
    """Answers the first so many open requests of every job; returns how many were submitted and not answered."""

    def answer_some(count):
        waiting = stage.queries.load().requests
        for job in stage.queries.open_jobs():
            stage.commit("", job.id, "", stage.pending(job.id)[:count])
        return waiting

    return answer_some


def close_all(stage):
    for job in stage.queries.open_jobs():
        stage.ledger.close(job.id, 60)


def test_a_run_that_takes_too_long_leaves_nothing(client, stage):
    with pytest.raises(NotFinishedError):
        list(client.run(["a"], timeout=0))
    assert stage.queries.load().requests == 0
    close_all(stage)


def test_a_long_input_is_never_in_redis_as_a_whole(client, stage, answer, in_background):
    outputs = client.run((f"p {i}" for i in range(100)), SAMPLED, window=10)
    read = in_background(lambda: [output.index for output in outputs])
    waiting, kept = [], []
    while not read.done():
        waiting.append(answer(3))
        kept += [stage.redis.xlen(stage.keys.job(job.id).outputs) for job in stage.queries.open_jobs()]
    assert sorted(read.result()) == list(range(100))
    assert max(waiting) <= 10
    assert max(kept) <= 10
    assert stage.queries.load().requests == 0
    close_all(stage)


def test_it_waits_for_room(client, stage, answer, in_background):
    stage.ledger.configure(LEADER, Policy(max_pending_requests=4, max_user_pending_requests=3))
    outputs = client.run((f"p {i}" for i in range(20)), SAMPLED, user="ann")
    read = in_background(lambda: [output.index for output in outputs])
    waiting = []
    while not read.done():
        waiting.append(answer(2))
    assert sorted(read.result()) == list(range(20))
    assert max(waiting) <= 3
    close_all(stage)


def test_identical_prompts_come_back_each_with_its_place(client, stage, answer, in_background):
    outputs = client.run(["a", "b"] * 20, SamplingParams(temperature=0), window=8)
    read = in_background(lambda: list(outputs))
    while not read.done():
        answer(8)
    assert sorted(output.index for output in read.result()) == list(range(40))
    assert sum(output.source is OutputSource.SHARED for output in read.result()) == 38
    close_all(stage)


def test_who_stops_reading_cancels_the_rest(client, stage, in_background):
    outputs = client.run((f"p {i}" for i in itertools.count()), SAMPLED, window=5)
    first = in_background(lambda: next(outputs))
    while not first.done():
        for job in stage.queries.open_jobs():
            stage.commit("", job.id, "", stage.pending(job.id)[:1])
    assert first.result().index == 0
    outputs.close()
    (job,) = stage.queries.open_jobs()
    assert job.cancelled
    assert stage.queries.load().requests == 0
    close_all(stage)


def test_no_prompts_give_no_outputs(client, stage):
    assert list(client.run(iter(()))) == []
    close_all(stage)


@pytest.mark.parametrize(("prompts", "place"), [([], None), (["a", 7], 1), (["a", "b", ""], 2)])
def test_a_prompt_that_cannot_be_run_ends_the_run_and_names_its_place(client, stage, prompts, place):
    if place is None:
        with pytest.raises(InvalidRequestError, match="not one string"):
            client.run("a")
        return
    with pytest.raises(InvalidRequestError, match=f"prompts\\[{place}\\]"):
        list(client.run(prompts))
    assert stage.queries.load().requests == 0
    close_all(stage)


def test_a_window_must_hold_something(client):
    with pytest.raises(InvalidRequestError, match="window"):
        client.run(["a"], window=0)


def test_a_request_that_can_never_be_taken_ends_the_run(client, stage):
    stage.ledger.configure(LEADER, Policy(max_pending_tokens=50))
    with pytest.raises(ExceedsLimitError):
        list(client.run(["a"], SamplingParams(max_tokens=100)))
    close_all(stage)


def test_while_nothing_is_read_the_job_stays_open_until_the_run_is_given_up(client, stage, answer, in_background):
    outputs = client.run((f"p {i}" for i in itertools.count()), SAMPLED, window=5)
    first = in_background(lambda: next(outputs))
    while not first.done():
        answer(1)
    (job,) = stage.queries.open_jobs()
    stage.age_field(stage.keys.job(job.id).record, "touched_ms", 100)
    assert client.leases.renew()
    assert stage.queries.job(job.id).touched_ms > job.touched_ms - 50_000
    outputs.close()
    assert not client.leases.renew()
    close_all(stage)


def test_prompts_that_are_slow_to_come_are_answered_in_between(stage):
    clock = FakeClock()

    def slow():
        for _ in range(3):
            clock.advance(60.0)
            yield request()

    feed = JobFeed(stage.ledger, "job", "")
    outputs = WindowedOutputs(feed, stage.store.outputs("job"), slow(), now_s=clock.now_s)
    assert outputs.read(60.0) == []  # without waiting: the next prompt may be there first
    assert feed.submitted == 1
    stage.commit("", "job", "", [0])
    assert [output.index for output in outputs.read(60.0)] == [0]
    assert feed.submitted == 2
    stage.commit("", "job", "", [1])
    assert [output.index for output in outputs.read(60.0)] == [1]
    stage.commit("", "job", "", [2])
    assert [output.index for output in outputs.read(0.0)] == [2]
    assert stage.queries.job("job").state == "done"
    stage.ledger.close("job", 60)


def test_a_client_that_waits_for_room_is_not_taken_for_gone(stage):
    feed = JobFeed(stage.ledger, "job", "")
    feed.add([request()])
    stage.ledger.configure(LEADER, Policy(max_pending_requests=1))
    stage.redis.hset(stage.keys.job("job").record, "touched_ms", 0)
    assert feed.offer([request()]) is not None
    assert stage.queries.job("job").touched_ms > 0

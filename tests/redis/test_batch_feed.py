"""A batch run's jobs on a real ledger: kept open, begun anew, taken back."""

import json

import pytest

from broker.errors import BrokerUnavailableError, JobNotFoundError
from broker.records import Policy
from broker.states import JobState
from driver.batch_feed import TOUCH_S, BatchFeed, Share
from driver.batch_file import BatchLine, BatchOutput, RequestKind
from driver.batch_run import BatchRun
from driver.client import Client
from tests.support.clock import FakeClock
from tests.support.stage import LEADER, request


def lines(*numbers):
    return [
        BatchLine(number=n, custom_id=str(n), kind=RequestKind.COMPLETION, model=None, request=request())
        for n in numbers
    ]


@pytest.fixture
def client(settings, stage):
    with Client(settings=settings) as client:
        yield client


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def feed(client, clock):
    feed = BatchFeed(client, "m", now_s=clock.now_s)
    feed.add(lines(1, 2, 3))
    return feed


def answer_all(stage, feed):
    """Answers of the feed's job, and the lines they were read for."""
    stage.commit("", feed.job_id, "", sorted(feed.waiting))
    found = [line.number for line, _ in feed.read(0)]
    feed.forget_read()
    return found


def end(stage, feed):
    feed.seal()
    stage.ledger.close(feed.job_id, 60)


def test_lines_wait_in_the_class_and_share_that_they_were_given(stage, client):
    feed = BatchFeed(client, "m", Share(priority=-10, user="me", weight=3))
    feed.add(lines(1))
    (waiting,) = stage.queries.waiting_jobs()
    assert (waiting.id, waiting.priority, waiting.user, waiting.weight) == (feed.job_id, -10, "me", 3.0)
    feed.cancel()
    stage.ledger.close(feed.job_id, 60)


def test_lines_come_back_with_their_answers(stage, feed):
    assert answer_all(stage, feed) == [1, 2, 3]
    assert feed.waiting == {}
    end(stage, feed)


def test_each_feed_is_touched_by_its_own_clock(stage, feed, clock):
    touched_ms = stage.queries.job(feed.job_id).touched_ms
    stage.redis.hset(stage.keys.job(feed.job_id).record, "touched_ms", 0)
    clock.advance(TOUCH_S - 1)
    feed.keep_open()
    assert stage.queries.job(feed.job_id).touched_ms == 0
    clock.advance(1)
    feed.keep_open()
    assert stage.queries.job(feed.job_id).touched_ms >= touched_ms
    answer_all(stage, feed)
    end(stage, feed)


def test_lines_of_a_job_that_somebody_sealed_go_on_in_a_new_one(stage, feed):
    old = feed.job_id
    stage.commit("", old, "", [0])
    assert [line.number for line, _ in feed.read(0)] == [1]
    stage.ledger.submit(old, "m", [], offset=3, last=True)
    feed.add(lines(4, 5))
    assert feed.job_id != old
    assert answer_all(stage, feed) == [2, 3, 4, 5]
    assert stage.queries.job(old).cancelled
    end(stage, feed)


def test_lines_of_a_job_that_is_gone_go_on_in_a_new_one(stage, feed, clock):
    """Nothing would ever come of it, and nobody would say so."""
    feed.seal()
    stage.redis.flushall()
    clock.advance(TOUCH_S)
    feed.keep_open()
    assert stage.queries.job(feed.job_id).state == JobState.RUNNING
    assert answer_all(stage, feed) == [1, 2, 3]
    stage.ledger.close(feed.job_id, 60)


def test_lines_beyond_a_limit_are_held_and_go_in_as_there_is_room(stage, feed):
    stage.ledger.configure(LEADER, Policy(max_pending_requests=4))
    feed.add(lines(4, 5, 6))
    feed.seal()
    assert [line.number for line in feed.held] == [5, 6]
    assert feed.full.limit == "max_pending_requests"
    assert stage.queries.job(feed.job_id).state == JobState.OPEN
    assert answer_all(stage, feed) == [1, 2, 3, 4]
    feed.add_held()
    assert feed.held == []
    assert stage.queries.job(feed.job_id).state == JobState.RUNNING
    assert answer_all(stage, feed) == [5, 6]
    stage.ledger.close(feed.job_id, 60)


def test_held_lines_of_a_job_that_is_gone_go_on_in_a_new_one(stage, feed):
    stage.ledger.configure(LEADER, Policy(max_pending_requests=3))
    feed.add(lines(4))
    feed.seal()
    old = feed.job_id
    stage.ledger.submit(old, "m", [], offset=3, last=True)
    stage.commit("", old, "", [0])
    assert [line.number for line, _ in feed.read(0)] == [1]
    feed.add_held()
    assert feed.job_id != old
    found = []
    while feed.waiting:
        found += answer_all(stage, feed)
        feed.add_held()
    assert sorted(found) == [2, 3, 4]
    assert stage.queries.job(feed.job_id).state == JobState.DONE
    for job in (old, feed.job_id):
        stage.ledger.close(job, 60)


def test_a_file_goes_through_a_queue_smaller_than_its_window(client, stage, tmp_path, in_background):
    stage.ledger.configure(LEADER, Policy(max_pending_requests=5, max_pending_tokens=1000))
    source = tmp_path / "in"
    with source.open("w") as file:
        for number in range(40):
            tokens = 5000 if number in (0, 17) else 10
            body = {"model": "ab"[number % 2], "prompt": "hello", "max_tokens": tokens}
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    reports, counts = [], []
    with BatchOutput(source, tmp_path / "out", None) as results:
        run = in_background(BatchRun(client, source, results, report=reports.append).run)
        while not run.done():
            counts.append(stage.queries.load().requests)
            for job in stage.queries.open_jobs():
                stage.commit("", job.id, "", stage.pending(job.id)[:2])
    summary = run.result()
    assert (summary.done, summary.failed) == (40, 2)
    assert max(counts) <= 5
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted(int(line["custom_id"]) for line in found) == list(range(40))
    errors = {line["custom_id"]: line["error"]["code"] for line in found if line["error"]}
    assert errors == {"0": "exceeds_limit", "17": "exceeds_limit"}
    assert "the queue is full: max_pending_requests is 5" in {item.obstacle for item in reports}
    for job in stage.queries.open_jobs():
        stage.ledger.close(job.id, 60)


@pytest.mark.parametrize(("error", "tried"), [(JobNotFoundError("gone"), 2), (BrokerUnavailableError("down"), 1)])
def test_a_cancel_goes_as_far_as_it_can_and_raises_nothing(client, tmp_path, error, tried):
    class Broken:
        def __init__(self):
            self.tried = 0

        def cancel(self):
            self.tried += 1
            raise error

    source = tmp_path / "in"
    source.touch()
    with BatchOutput(source, tmp_path / "out", None) as results:
        run = BatchRun(client, source, results)
        run._feeds = {"a": (broken := Broken()), "b": broken}
        run.cancel()
    assert broken.tried == tried

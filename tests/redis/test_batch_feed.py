"""A batch run's jobs on a real ledger: kept open, begun anew, taken back."""

import pytest

from broker.errors import BrokerUnavailableError, JobNotFoundError
from broker.messages import JobState
from driver.batch_feed import TOUCH_S, BatchFeed
from driver.batch_file import BatchLine, BatchOutput, RequestKind
from driver.batch_run import BatchRun
from driver.client import Client
from tests.support.clock import FakeClock
from tests.support.stage import request


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

import pytest

from broker import ledger
from broker.deltas import TextDelta
from broker.messages import Output
from broker.results import PAGE
from broker.states import WorkerState
from tests.support.stage import heartbeat
from tests.support.waiting import wait_until


@pytest.fixture
def session(stage):
    return stage.worker()


def piece(index, offset=0, text="abc"):
    return TextDelta(index=index, offset=offset, text=text)


def published(stage, job):
    stream, found = stage.store.live(job), []
    while items := stream.read(0):
        found += items
    return [item for item in found if isinstance(item, TextDelta)]


def test_new_text_comes_to_the_readers_in_its_order(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    pieces = [piece(1), piece(0, 5, "é🙂"), piece(1, 3, "d")]
    assert stage.ledger.publish(batch, job, session, pieces[:2]) == 2
    assert stage.ledger.publish(batch, job, session, pieces[2:]) == 1
    assert published(stage, job) == pieces


def test_another_session_publishes_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    assert stage.ledger.publish(batch, job, stage.worker("gpu1@host"), [piece(0)]) == 0
    assert published(stage, job) == []


def test_a_fenced_worker_publishes_nothing_once_its_batch_is_released(stage, session):
    job = stage.job(1)
    old = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(old, job, session, count_attempt=True)
    new = stage.worker("gpu1@host")
    batch = stage.batch(new, job, [0])
    assert stage.ledger.publish(old, job, session, [piece(0, 0, "late")]) == 0
    assert stage.ledger.publish(batch, job, new, [piece(0)]) == 1
    assert published(stage, job) == [piece(0)]


def test_requests_that_are_over_or_were_given_back_publish_nothing(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    stage.commit(batch, job, session, [0])
    stage.ledger.release(batch, job, session, count_attempt=False, indices=[1])
    assert stage.ledger.publish(batch, job, session, [piece(0), piece(1), piece(2)]) == 1
    assert published(stage, job) == [piece(2)]


def test_a_draining_worker_may_publish(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.sessions.beat(session, "gpu0@host", heartbeat(state=WorkerState.DRAINING))
    assert stage.ledger.publish(batch, job, session, [piece(0)]) == 1


def test_what_nobody_reads_stays_bounded(stage, session, monkeypatch):
    monkeypatch.setattr(ledger, "DELTA_LIMIT", 200)
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    for start in range(0, 2000, 100):
        stage.ledger.publish(batch, job, session, [piece(0, place, "x") for place in range(start, start + 100)])
    kept = published(stage, job)
    assert 200 <= len(kept) < 400  # about: the server drops whole blocks
    assert kept[-1].end == 2000


def test_what_was_published_goes_when_the_job_is_closed(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.ledger.publish(batch, job, session, [piece(0)])
    stage.commit(batch, job, session, [0])
    assert stage.has_key(stage.keys.job(job).deltas)
    stage.ledger.close(job, 60)
    assert not stage.has_key(stage.keys.job(job).deltas)
    assert stage.ledger.publish(batch, job, session, [piece(0)]) == 0
    assert not stage.has_key(stage.keys.job(job).deltas)
    assert 0 < stage.redis.ttl(stage.keys.job(job).outputs) <= 60


def test_a_job_that_does_not_stream_has_no_such_key(stage, session):
    job = stage.job(1)
    stage.commit(stage.batch(session, job, [0]), job, session, [0])
    assert not stage.has_key(stage.keys.job(job).deltas)


def test_a_reader_waits_for_text_and_outputs_alike(stage, session, in_background):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stream = stage.store.live(job)
    for act in (
        lambda: stage.ledger.publish(batch, job, session, [piece(0)]),
        lambda: stage.commit(batch, job, session, [1]),
    ):
        reading = in_background(lambda: stream.read(2.0))
        wait_until(lambda: stage.redis.info("clients")["blocked_clients"] == 1)
        act()
        (item,) = reading.result(60)
    assert isinstance(item, Output)
    assert stream.read(0) == stream.read(0.01) == []


def test_more_than_a_page_is_read_page_by_page_and_text_before_outputs(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.publish(batch, job, session, [piece(0, place, "x") for place in range(PAGE + 3)])
    stage.commit(batch, job, session, [1, 0])
    stream = stage.store.live(job)
    assert stream.has_more()
    first = stream.read(0)
    assert [type(item) for item in first] == [TextDelta] * PAGE + [Output] * 2
    assert [item.index for item in first[PAGE:]] == [1, 0]
    assert not stream.has_more()
    assert len(stream.read(0)) == 3

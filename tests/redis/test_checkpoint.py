import pytest

from broker.states import WorkerState
from tests.support.stage import heartbeat


@pytest.fixture
def session(stage):
    return stage.worker()


def saved(stage, job):
    """The tokens that each request would go on with."""
    session = stage.worker("reader@host")
    batch = stage.batch(session, job, stage.pending(job), claimed=False)
    return {item.index: item.generated for item in stage.ledger.claim(batch, job, session).requests}


def test_saved_tokens_go_on_with_the_request(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    assert stage.ledger.checkpoint(batch, job, session, {0: (1, 2), 1: (3,)}) == 2
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert saved(stage, job) == {0: (1, 2), 1: (3,)}


def test_the_latest_counts(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.ledger.checkpoint(batch, job, session, {0: (1,)})
    stage.ledger.checkpoint(batch, job, session, {0: (1, 2, 3)})
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert saved(stage, job) == {0: (1, 2, 3)}


def test_another_session_saves_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    assert stage.ledger.checkpoint(batch, job, stage.worker("gpu1@host"), {0: (1,)}) == 0


def test_a_fenced_worker_saves_nothing_once_its_batch_is_released(stage, session):
    job = stage.job(1)
    old = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(old, job, session, count_attempt=True)
    new = stage.worker("gpu1@host")
    batch = stage.batch(new, job, [0])
    assert stage.ledger.checkpoint(old, job, session, {0: (9, 9)}) == 0
    assert stage.ledger.claim(batch, job, new).requests[0].generated == ()


def test_a_finished_request_saves_nothing(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.commit(batch, job, session, [0])
    assert stage.ledger.checkpoint(batch, job, session, {0: (1,), 1: (2,)}) == 1
    assert stage.redis.hkeys(stage.keys.job(job).checkpoints) == [b"1"]


def test_requests_that_were_given_back_one_by_one_save_nothing(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.release(batch, job, session, count_attempt=False, indices=[0])
    assert stage.ledger.checkpoint(batch, job, session, {0: (1,), 1: (2,)}) == 1


def test_the_output_ends_what_was_saved(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.ledger.checkpoint(batch, job, session, {0: (1, 2)})
    stage.commit(batch, job, session, [0])
    assert not stage.has_key(stage.keys.job(job).checkpoints)


def test_a_draining_worker_may_save(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.sessions.beat(session, "gpu0@host", heartbeat(state=WorkerState.DRAINING))
    assert stage.ledger.checkpoint(batch, job, session, {0: (1,)}) == 1

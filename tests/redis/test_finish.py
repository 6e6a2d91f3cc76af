import pytest


@pytest.fixture
def session(stage):
    return stage.worker()


def test_a_batch_whose_requests_are_done_is_gone(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.commit(batch, job, session, [0])
    assert stage.ledger.finish(batch, session) == 0
    assert stage.queries.batches(session) == []
    assert not stage.has_key(stage.keys.batch(batch).record)
    assert stage.session(session).batches == 0


def test_a_batch_with_open_requests_stays(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    stage.commit(batch, job, session, [0])
    assert stage.ledger.finish(batch, session) == 2
    assert [item.id for item in stage.queries.batches(session)] == [batch]
    assert stage.queries.batch_indices(batch) == (1, 2)


def test_finishing_twice_changes_nothing(stage, session):
    job = stage.job(2)
    first = stage.batch(session, job, [0], isolated=True)
    stage.batch(session, job, [1], isolated=True)
    stage.commit(first, job, session, [0])
    assert stage.ledger.finish(first, session) == 0
    assert stage.ledger.finish(first, session) == 0
    assert stage.session(session).isolated == 1


def test_another_session_finishes_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.commit(batch, job, session, [0])
    assert stage.ledger.finish(batch, stage.worker("gpu1@host")) == 0
    assert [item.id for item in stage.queries.batches(session)] == [batch]


def test_an_isolated_batch_ends_the_isolation(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], isolated=True)
    assert stage.session(session).isolated == 1
    stage.commit(batch, job, session, [0])
    stage.ledger.finish(batch, session)
    assert stage.session(session).isolated == 0


def test_a_fenced_session_may_finish_what_is_still_its_own(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    stage.commit(batch, job, session, [0])
    assert stage.ledger.finish(batch, session) == 0
    assert stage.sessions.forget(stage.session(session))


def test_after_a_release_there_is_nothing_to_finish(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], isolated=True)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert stage.ledger.finish(batch, session) == 0
    assert stage.in_hand(session) == (0, 0, 0)
    assert stage.pending(job) == [0]


def test_the_driver_is_woken_when_a_worker_had_all_the_batches_that_it_may_have(stage):
    """Between the last commit and the end of the batch a driver that looks sees no room."""
    session, waiting = stage.worker(max_batches=2), stage.job(1)
    job = stage.job(2)
    batches = [stage.batch(session, job, [index]) for index in (0, 1)]
    for index, batch in enumerate(batches):
        stage.commit(batch, job, session, [index])
    woken = []
    for batch in batches:
        stage.wakes()
        stage.ledger.finish(batch, session)
        woken.append(stage.wakes())
    assert woken == [True, False]
    assert stage.pending(waiting) == [0]


def test_the_driver_is_woken_when_a_suspect_is_through_and_anything_waits(stage, session):
    jobs = [stage.job(1), stage.job(1)]
    woken = []
    for job in jobs:
        batch = stage.batch(session, job, [0], isolated=True)
        stage.commit(batch, job, session, [0])
        stage.wakes()
        stage.ledger.finish(batch, session)
        woken.append(stage.wakes())
    assert woken == [True, False]

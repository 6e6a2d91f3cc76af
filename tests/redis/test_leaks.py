"""The key-leak check itself: it must be able to fail."""

from tests.support.leaks import leaked_keys


def test_keys_of_open_jobs_and_live_sessions_are_owned(stage, store):
    session = stage.worker()
    stage.batch(session, stage.job(), [0, 1])
    assert leaked_keys(store) == []


def test_a_closed_job_owns_nothing(stage, store):
    job = stage.finished_job()
    store.redis.zrem(store.keys.jobs, job)
    assert store.keys.job(job).outputs in leaked_keys(store)
    store.ledger.close(job, 60)
    assert leaked_keys(store) == []


def test_a_batch_that_no_session_holds_is_leaked(stage, store):
    session = stage.worker()
    batch = stage.batch(session, stage.job(), [0])
    store.redis.srem(store.keys.session(session).batches, batch)
    assert leaked_keys(store) == [store.keys.batch(batch).record, store.keys.batch(batch).requests]
    store.redis.sadd(store.keys.session(session).batches, batch)


def test_a_celery_result_without_an_end_is_leaked(store):
    store.redis.set("celery-task-meta-x", "1")
    assert leaked_keys(store) == ["celery-task-meta-x"]
    store.redis.delete("celery-task-meta-x")

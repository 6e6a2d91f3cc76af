import pytest
from celery.result import AsyncResult

from broker import closing
from broker.closing import close_job
from broker.errors import IncompleteJobError
from broker.messages import failed_output
from tests.support.stage import output

SUMMARY = {
    "requests": 3,
    "failed": 0,
    "prompt_tokens": 9,
    "completion_tokens": 6,
    "shared": 0,
    "cached": 0,
    "saved_prompt_tokens": 0,
    "saved_completion_tokens": 0,
}


def result(app, job):
    """What plain Celery gives for the job's id."""
    return AsyncResult(job, app=app).get(timeout=60)


@pytest.fixture
def job(stage):
    """Three outputs, the last request's first."""
    job = stage.job(3)
    for index in (2, 0, 1):
        stage.commit("", job, "", [index], f"text {index}")
    return job


def test_the_outputs_are_the_celery_result_in_request_order(store, app, job):
    close_job(app, store, job)
    assert [item["text"] for item in result(app, job)] == ["text 0", "text 1", "text 2"]
    assert result(app, job)[0] == {
        "index": 0,
        "text": "text 0",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def test_the_job_is_closed(store, app, job):
    close_job(app, store, job)
    assert store.queries.open_jobs() == []
    assert store.queries.closing_jobs() == []
    assert 0 < store.redis.ttl(store.keys.job(job).outputs) <= store.settings.result_ttl_s


def test_the_celery_result_has_an_end_too(store, app, job):
    close_job(app, store, job)
    assert 0 < store.redis.ttl(f"celery-task-meta-{job}") <= store.settings.result_ttl_s


def lose_client(store, job):
    assert store.ledger.abandon(job, store.queries.job(job).touched_ms)


def test_a_job_whose_client_was_lost_is_a_failure_for_celery_and_its_outputs_can_be_read(store, app, stage):
    job = stage.job(2, last=False)
    stage.commit("", job, "", [1, 0])
    lose_client(store, job)
    close_job(app, store, job)
    with pytest.raises(IncompleteJobError, match=f"job {job} is incomplete"):
        result(app, job)
    assert [output.index for output in store.outputs(job).drain()] == [1, 0]


def test_one_whose_client_came_back_is_none(store, app, stage):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    lose_client(store, job)
    close_job(app, store, job)
    stage.ledger.submit(job, "", [], offset=1, last=True)
    close_job(app, store, job)
    assert [item["index"] for item in result(app, job)] == [0]


@pytest.mark.parametrize("closed_meanwhile", [False, True])
def test_a_client_that_comes_back_while_a_failure_is_stored_leaves_none(
    store, app, stage, monkeypatch, closed_meanwhile
):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    lose_client(store, job)
    store_result = app.backend._store_result

    def store_late(task_id, stored, state, *rest, **options):
        if state == "FAILURE":
            stage.ledger.submit(job, "", [], offset=1, last=True)
            if closed_meanwhile:  # by another process
                close_job(app, store, job)
                app.backend.delete(app.backend.get_key_for_task(job))  # as if the look for one had been before
        return store_result(task_id, stored, state, *rest, **options)

    monkeypatch.setattr(app.backend, "_store_result", store_late)
    close_job(app, store, job)
    assert [item["index"] for item in result(app, job)] == [0]
    assert store.queries.closing_jobs() == []


def test_closing_twice_is_harmless(store, app, job):
    close_job(app, store, job)
    close_job(app, store, job)
    assert len(result(app, job)) == 3


def test_an_error_is_part_of_the_result_and_the_task_is_a_success(stage, app):
    job = stage.job(2)
    stage.ledger.commit("", job, "", [output(1, "fine"), failed_output(0, "cancelled", "stop")])
    close_job(app, stage.store, job)
    failed, fine = result(app, job)
    assert failed["error"] == {"code": "cancelled", "message": "stop"}
    assert fine["text"] == "fine"
    assert AsyncResult(job, app=app).state == "SUCCESS"


def test_trimmed_outputs_leave_a_summary(store, app, job):
    stream = store.outputs(job)
    stream.read(0)
    stream.trim()
    close_job(app, store, job)
    assert result(app, job) == {"job_id": job, **SUMMARY}


def test_too_many_outputs_leave_a_summary(store, app, job, monkeypatch):
    monkeypatch.setattr(closing, "MAX_OUTPUTS", 2)
    close_job(app, store, job)
    assert result(app, job) == {"job_id": job, **SUMMARY}


def test_too_much_text_leaves_a_summary(store, app, job, monkeypatch):
    monkeypatch.setattr(closing, "MAX_BYTES", len("text 0") * 2)
    close_job(app, store, job)
    assert result(app, job) == {"job_id": job, **SUMMARY}


def test_a_job_at_the_limits_is_stored_whole(store, app, job, monkeypatch):
    monkeypatch.setattr(closing, "MAX_OUTPUTS", 3)
    monkeypatch.setattr(closing, "MAX_BYTES", len("text 0") * 3)
    close_job(app, store, job)
    assert len(result(app, job)) == 3


def test_a_job_without_requests_has_an_empty_result(stage, app):
    job = stage.job(0)
    close_job(app, stage.store, job)
    assert result(app, job) == []


def test_a_job_that_has_expired_is_taken_off_the_tables(stage, app):
    job = stage.finished_job()
    stage.redis.delete(*stage.keys.job(job).all())
    close_job(app, stage.store, job)
    assert stage.queries.closing_jobs() == []
    assert stage.redis.zcard(stage.keys.jobs) == 0

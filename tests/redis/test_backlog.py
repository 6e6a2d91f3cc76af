import uuid

from broker.records import JobBacklog
from tests.support.stage import COST, failures, request


def backlogs(stage):
    return list(stage.store.backlogs.read().jobs)


def test_nothing_waits_at_first(stage):
    assert backlogs(stage) == []


def test_what_waits_is_counted_with_its_cost(stage):
    stage.job(3, model="m")
    assert backlogs(stage) == [JobBacklog(model="m", requests=3, mean_cost=COST)]


def test_what_is_done_tells_how_long_answers_are(stage):
    session, job = stage.worker(), stage.job(5)
    stage.commit(stage.batch(session, job, [0, 1]), job, session, [0, 1])
    (found,) = backlogs(stage)
    assert (found.requests, found.answered, found.completion_tokens, found.tokens_each) == (3, 2, 4, 2)


def test_what_was_copied_or_failed_says_nothing_of_lengths(stage):
    job = str(uuid.uuid4())
    same = [request(temperature=0)] * 3
    stage.ledger.submit(job, "m", [*same, request(), request()], offset=0, last=True)
    stage.commit("", job, "", [0])
    stage.ledger.commit("", job, "", failures([3]))
    (found,) = backlogs(stage)
    assert (found.requests, found.answered, found.completion_tokens) == (1, 1, 2)


def test_each_job_has_its_own_row_in_the_order_of_service(stage):
    stage.job(1, model="m")
    stage.job(2, model="n", priority=1)
    assert [(log.model, log.requests) for log in backlogs(stage)] == [("n", 2), ("m", 1)]


def test_of_many_jobs_the_first_stand_for_all(stage, monkeypatch):
    monkeypatch.setattr("broker.backlog.JOBS_READ", 2)
    for _ in range(6):
        stage.job(1)
    found = stage.store.backlogs.read()
    assert (len(found.jobs), found.waiting, found.share) == (2, 6, 3.0)

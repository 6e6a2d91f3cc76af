from broker.states import JobState


def touched_ms(stage, job):
    return stage.queries.job(job).touched_ms


def test_the_client_of_an_open_job_is_heard_of(stage):
    job = stage.job(1, last=False)
    before_ms = touched_ms(stage, job)
    stage.age_field(stage.keys.job(job).record, "touched_ms", 100)
    assert stage.ledger.renew(job)
    assert stage.ledger.renew(job)
    assert touched_ms(stage, job) >= before_ms
    assert stage.queries.job(job).state == JobState.OPEN


def test_it_wakes_no_driver(stage):
    job = stage.job(1, last=False)
    stage.wakes()
    stage.ledger.renew(job)
    assert not stage.wakes()


def test_a_job_that_takes_no_more_requests_has_no_lease(stage):
    sealed, cancelled = stage.job(1), stage.job(1, last=False)
    stage.ledger.cancel(cancelled)
    before_ms = [touched_ms(stage, job) for job in (sealed, cancelled)]
    assert [stage.ledger.renew(job) for job in (sealed, cancelled)] == [False, False]
    assert [touched_ms(stage, job) for job in (sealed, cancelled)] == before_ms


def test_a_job_that_nobody_knows_is_not_made(stage):
    assert not stage.ledger.renew("nobody")
    assert not stage.has_key(stage.keys.job("nobody").record)

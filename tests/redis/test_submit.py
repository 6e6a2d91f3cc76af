import uuid

import pytest

from broker.costs import prefix_key
from broker.errors import JobNotFoundError
from broker.states import JobState
from tests.support.racing import race
from tests.support.stage import COST, failures, request


def submit(stage, job_id, texts, offset, *, last=False, **options):
    return stage.ledger.submit(job_id, "m", [request(text) for text in texts], offset=offset, last=last, **options)


@pytest.fixture
def job_id():
    return str(uuid.uuid4())


def test_the_first_run_creates_the_job(stage, job_id):
    assert submit(stage, job_id, "abc", 0, last=True, priority=7) == 3
    record = stage.queries.job(job_id)
    assert (record.id, record.model, record.priority) == (job_id, "m", 7)
    assert (record.state, record.submitted, record.done) == (JobState.RUNNING, 3, 0)
    assert stage.pending(job_id) == [0, 1, 2]
    assert [job.id for job in stage.queries.open_jobs()] == [job_id]


def test_a_request_is_kept_with_its_cost(stage):
    job_id = stage.job(1)
    assert stage.queries.request(job_id, 0) == request()
    assert [item.cost for item in stage.queries.pending(job_id, 10)] == [COST]


def test_a_request_is_kept_with_how_it_begins_and_how_long_its_prompt_is(stage, job_id):
    stage.ledger.submit(job_id, "m", [request("x" * 400, n=2)], offset=0, last=True)
    (item,) = stage.queries.pending(job_id, 10)
    assert (item.cost, item.prompt_tokens) == (2 * (100 + 10), 200)
    assert item.prefix == prefix_key(request("x" * 300)) != 0


def test_what_an_older_client_submitted_is_read(stage, job_id):
    submit(stage, job_id, "a", 0, last=True)
    stage.redis.hset(stage.keys.job(job_id).costs, 0, "14")
    (item,) = stage.queries.pending(job_id, 10)
    assert (item.cost, item.prompt_tokens, item.prefix) == (14, 0, 0)
    session = stage.worker()
    stage.batch(session, job_id, [0])
    assert stage.in_hand(session) == (1, 14, 0)


def test_a_job_says_whose_share_it_uses(stage, job_id):
    submit(stage, job_id, "a", 0, last=True, user="é me", weight=2.5)
    record = stage.queries.job(job_id)
    assert (record.user, record.weight) == ("é me", 2.5)


def test_a_job_stays_open_until_the_last_run(stage, job_id):
    submit(stage, job_id, "ab", 0)
    assert stage.queries.job(job_id).state == JobState.OPEN
    assert submit(stage, job_id, "c", 2, last=True) == 3
    assert stage.queries.job(job_id).state == JobState.RUNNING


def test_a_run_sent_twice_changes_nothing(stage, job_id):
    submit(stage, job_id, "ab", 0)
    assert submit(stage, job_id, "xy", 0) == 2
    assert [stage.queries.request(job_id, index).prompt for index in (0, 1)] == ["a", "b"]
    assert stage.pending(job_id) == [0, 1]


def test_an_earlier_run_sent_again_takes_nothing_back(stage, job_id):
    submit(stage, job_id, "ab", 0)
    submit(stage, job_id, "c", 2)
    assert submit(stage, job_id, "ab", 0) == 3
    assert stage.queries.job(job_id).submitted == 3


def test_a_run_that_overlaps_adds_only_what_is_new(stage, job_id):
    submit(stage, job_id, "ab", 0)
    assert submit(stage, job_id, "yc", 1) == 3
    assert [stage.queries.request(job_id, index).prompt for index in range(3)] == ["a", "b", "c"]


def test_a_repeated_run_does_not_bring_a_finished_request_back(stage, job_id):
    submit(stage, job_id, "ab", 0)
    stage.commit("", job_id, "", [0])
    submit(stage, job_id, "ab", 0)
    assert stage.pending(job_id) == [1]
    assert stage.queries.request(job_id, 0) is None


def test_a_run_out_of_order_is_refused(stage, job_id):
    submit(stage, job_id, "ab", 0)
    with pytest.raises(JobNotFoundError, match="takes no requests at 3"):
        submit(stage, job_id, "x", 3)
    assert stage.queries.job(job_id).submitted == 2


def test_a_later_run_of_an_unknown_job_creates_nothing(stage, job_id):
    with pytest.raises(JobNotFoundError):
        submit(stage, job_id, "x", 1)
    assert stage.queries.open_jobs() == []


def test_the_last_run_may_be_sent_again(stage, job_id):
    submit(stage, job_id, "ab", 0, last=True)
    assert submit(stage, job_id, "ab", 0, last=True) == 2


def test_a_sealed_job_takes_nothing_more(stage, job_id):
    submit(stage, job_id, "ab", 0, last=True)
    with pytest.raises(JobNotFoundError, match="already sealed"):
        submit(stage, job_id, "c", 2)
    with pytest.raises(JobNotFoundError):
        submit(stage, job_id, "bc", 1)
    assert stage.pending(job_id) == [0, 1]


def test_the_last_output_before_the_seal_completes_the_job_at_the_seal(stage, job_id):
    submit(stage, job_id, "ab", 0)
    assert not stage.commit("", job_id, "", [0, 1]).job_done
    assert stage.queries.closing_jobs() == []
    submit(stage, job_id, "", 2, last=True)
    record = stage.queries.job(job_id)
    assert record.state == JobState.DONE
    assert record.finished_ms >= record.created_ms
    assert [job for job, _ in stage.queries.closing_jobs()] == [job_id]


def test_an_empty_sealed_job_is_done_at_once(stage, job_id):
    assert submit(stage, job_id, "", 0, last=True) == 0
    assert stage.queries.job(job_id).state == JobState.DONE
    assert [job for job, _ in stage.queries.closing_jobs()] == [job_id]


def test_an_empty_run_says_that_the_client_is_there(stage, job_id):
    submit(stage, job_id, "a", 0)
    key = stage.keys.job(job_id).record
    stage.age_field(key, "touched_ms", 100)
    before = stage.queries.job(job_id).touched_ms
    assert submit(stage, job_id, "", 1) == 1
    assert stage.queries.job(job_id).touched_ms >= before + 100_000


def test_the_deadline_counts_from_the_creation(stage, job_id):
    submit(stage, job_id, "a", 0, deadline_s=60)
    record = stage.queries.job(job_id)
    assert record.deadline_ms == record.created_ms + 60_000
    submit(stage, job_id, "b", 1, deadline_s=9)
    assert stage.queries.job(job_id).deadline_ms == record.deadline_ms


def test_a_tiny_deadline_is_a_deadline_all_the_same(stage, job_id):
    submit(stage, job_id, "a", 0, deadline_s=0.0001)
    record = stage.queries.job(job_id)
    assert record.deadline_ms == record.created_ms + 1


def test_without_a_deadline_there_is_none(stage):
    assert stage.queries.job(stage.job()).deadline_ms == 0


def test_a_submission_wakes_the_driver_once(stage, job_id):
    submit(stage, job_id, "a", 0)
    submit(stage, job_id, "b", 1)
    assert stage.redis.llen(stage.keys.wake) == 1
    assert stage.wakes()


def test_the_same_run_sent_by_many_at_once_counts_once(stage, job_id):
    assert race(*[lambda: submit(stage, job_id, "abcd", 0, last=True)] * 8) == [4] * 8
    assert stage.pending(job_id) == [0, 1, 2, 3]
    assert stage.queries.job(job_id).submitted == 4


def waiting(stage):
    return [job.id for job in stage.queries.waiting_jobs()]


def test_jobs_wait_by_priority_and_then_by_age(stage):
    names = [stage.job(1, priority=priority, model="m") for priority in (0, 5, -5, 5, 0)]
    for place, name in enumerate(names):  # a millisecond may hold several submissions
        job = stage.keys.job(name).record
        at_ms = int(stage.redis.hget(job, "place")) + place
        stage.redis.zadd(stage.keys.waiting, {f"{name} m": at_ms})
    assert waiting(stage) == [names[1], names[3], names[0], names[4], names[2]]


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_within_every_priority_a_millisecond_of_age_counts(stage, priority):
    place = stage.queries.server_time_ms() - priority * 10**13
    assert float(place) != float(place + 1)
    job = stage.job(1, priority=priority)
    assert abs(int(stage.redis.hget(stage.keys.job(job).record, "place")) - place) < 60_000


def test_a_job_waits_with_its_model(stage):
    job = stage.job(1, model="a model")
    assert [(item.id, item.model) for item in stage.queries.waiting_jobs()] == [(job, "a model")]


def test_a_waiting_job_is_described(stage):
    job = stage.job(2, model="m", priority=3, user="me", weight=0.5, deadline_s=60)
    (found,) = stage.queries.waiting_jobs()
    record = stage.queries.job(job)
    assert (found.priority, found.user, found.weight) == (3, "me", 0.5)
    assert (found.created_ms, found.deadline_ms) == (record.created_ms, record.deadline_ms)


def test_a_waiting_job_whose_record_cannot_be_read_is_left_out(stage):
    broken, job = stage.job(1), stage.job(1)
    stage.redis.hset(stage.keys.job(broken).record, "priority", "many")
    assert waiting(stage) == [job]


def test_the_front_of_a_job_says_where_it_stands(stage):
    job = stage.job(5)
    stage.commit("", job, "", [0, 1])
    stage.ledger.commit("", job, "", failures([2]))
    (front,) = stage.queries.fronts([job], 1)
    assert [item.index for item in front.pending] == [3]
    assert (front.backlog, front.answered, front.output_tokens) == (2, 2, 4)
    assert stage.queries.fronts(["gone"], 5)[0].pending == ()


def test_the_front_of_a_job_tells_whose_worker_died(stage):
    untried, job = stage.job(3), stage.job(3)
    session = stage.worker()
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    fronts = stage.queries.fronts([untried, job, "gone"], 2)
    assert [[(item.index, item.attempts) for item in front.pending] for front in fronts] == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 0)],
        [],
    ]


def test_a_job_waits_only_while_it_has_pending_requests(stage):
    session, job, empty = stage.worker(), stage.job(2), stage.job(0, last=False)
    assert empty not in waiting(stage)
    first = stage.batch(session, job, [0])
    assert waiting(stage) == [job]
    second = stage.batch(session, job, [1])
    assert waiting(stage) == []
    stage.ledger.release(second, job, session, count_attempt=True)
    assert waiting(stage) == [job]
    stage.commit("", job, "", [1])
    assert waiting(stage) == []
    stage.ledger.release(first, job, session, count_attempt=True, indices=[0])
    assert waiting(stage) == [job]


def test_a_job_that_comes_back_has_its_old_place(stage):
    session = stage.worker()
    first = stage.job(1)
    place = stage.redis.zscore(stage.keys.waiting, f"{first} ")
    batch = stage.batch(session, first, [0])
    stage.ledger.release(batch, first, session, count_attempt=False)
    assert stage.redis.zscore(stage.keys.waiting, f"{first} ") == place


def stopping(stage, after_s=0):
    return stage.queries.stopping_jobs(stage.queries.server_time_ms() + after_s * 1000)


def test_a_job_stops_at_its_deadline(stage):
    job, _ = stage.job(1, deadline_s=60), stage.job(1)
    assert stopping(stage, 59) == set()
    assert stopping(stage, 61) == {job}


def test_a_cancelled_job_stops_at_once(stage):
    job = stage.job(1, deadline_s=60)
    stage.ledger.cancel(job)
    assert stopping(stage) == {job}


def test_a_closed_job_needs_no_stopping(stage):
    job = stage.job(1, deadline_s=60)
    stage.commit("", job, "", [0])
    stage.ledger.close(job, 60)
    assert stopping(stage, 61) == set()

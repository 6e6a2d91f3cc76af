import pytest

from broker.errors import JobNotFoundError
from broker.records import CommitResult
from broker.states import JobState
from tests.support.racing import race
from tests.support.stage import COST, failures, output


@pytest.fixture
def session(stage):
    return stage.worker()


def test_an_output_is_stored_once_and_for_all(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    assert stage.commit(batch, job, session, [1], "first") == CommitResult(accepted=1, dropped=0, job_done=False)
    assert stage.results(job) == [output(1, "first")]
    assert stage.assigned(job) == {0: batch, 2: batch}
    assert stage.queries.request(job, 1) is None
    assert sorted(stage.redis.hkeys(stage.keys.job(job).costs)) == [b"0", b"2"]
    record = stage.queries.job(job)
    assert (record.done, record.failed, record.dropped) == (1, 0, 0)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 2)


def test_the_first_commit_wins(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.commit(batch, job, session, [0], "first")
    assert stage.commit(batch, job, session, [0, 1], "second") == CommitResult(accepted=1, dropped=1, job_done=True)
    assert stage.results(job) == [output(0, "first"), output(1, "second")]
    record = stage.queries.job(job)
    assert (record.done, record.dropped) == (2, 1)
    assert (record.prompt_tokens, record.completion_tokens) == (6, 4)


def test_the_same_request_twice_in_one_commit_counts_once(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    assert stage.commit(batch, job, session, [0, 0]).accepted == 1
    assert stage.in_hand(session) == (1, COST, 0)


def test_the_last_output_completes_the_job_once(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    assert not stage.commit(batch, job, session, [0]).job_done
    assert stage.commit(batch, job, session, [1]).job_done
    assert not stage.commit(batch, job, session, [0, 1]).job_done
    record = stage.queries.job(job)
    assert record.state == JobState.DONE
    assert record.created_ms <= record.finished_ms
    assert stage.queries.closing_jobs() == [(job, record.finished_ms)]


def test_an_open_job_is_not_done_though_all_its_requests_are(stage, session):
    job = stage.job(1, last=False)
    batch = stage.batch(session, job, [0])
    assert not stage.commit(batch, job, session, [0]).job_done
    assert stage.queries.job(job).state == JobState.OPEN


def test_failures_are_counted(stage):
    job = stage.job(2)
    stage.ledger.commit("", job, "", failures([0, 1]))
    record = stage.queries.job(job)
    assert (record.done, record.failed, record.completion_tokens) == (2, 2, 0)


def test_a_request_that_waits_can_be_committed(stage):
    job = stage.job(2)
    assert stage.commit("", job, "", [0]).accepted == 1
    assert stage.pending(job) == [1]


def test_an_output_for_a_request_that_does_not_exist_is_dropped(stage):
    job = stage.job(1, last=False)
    assert stage.commit("", job, "", [1]) == CommitResult(accepted=0, dropped=1, job_done=False)
    assert stage.results(job) == []
    stage.ledger.submit(job, "", [], offset=1, last=False)
    assert stage.commit("", job, "", [0]).accepted == 1


def test_an_unknown_job_is_an_error(stage):
    with pytest.raises(JobNotFoundError, match="job nothing is unknown"):
        stage.commit("", "nothing", "", [0])
    assert not stage.has_key(stage.keys.job("nothing").outputs)


def test_the_session_is_relieved_of_what_it_finished(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    stage.commit(batch, job, session, [0, 2])
    assert stage.in_hand(session) == (1, COST, 0)
    assert stage.queries.batch_indices(batch) == (1,)


def test_a_commit_that_makes_room_wakes_the_driver(stage, session):
    job = stage.job(4)
    batch = stage.batch(session, job, [0, 1])
    stage.wakes()
    stage.commit("", job, "", [2])
    assert not stage.wakes()
    stage.commit(batch, job, session, [0])
    assert stage.wakes()


def test_a_commit_wakes_nobody_while_nothing_waits(stage, session):
    """The driver would look in vain, and who submits just then would wait until it has looked."""
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.wakes()
    stage.commit(batch, job, session, [0])
    assert not stage.wakes()
    other = stage.job(1)
    stage.wakes()
    stage.commit(batch, job, session, [1])
    assert stage.wakes()
    assert stage.pending(other) == [0]


def test_a_late_commit_for_a_pending_request_saves_work(stage, session):
    """The worker was declared dead, its request waits again, and then its output comes after all."""
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert stage.commit(batch, job, session, [0], "late") == CommitResult(accepted=1, dropped=0, job_done=True)
    assert stage.pending(job) == []
    assert not stage.has_key(stage.keys.job(job).attempts)


def test_a_late_commit_takes_the_request_from_its_next_owner(stage, session):
    job = stage.job(2)
    old = stage.batch(session, job, [0, 1])
    stage.kill(session)
    stage.ledger.release(old, job, session, count_attempt=True)
    successor = stage.worker("gpu1@host")
    batch = stage.batch(successor, job, [0, 1])
    assert stage.commit(old, job, session, [0], "late").accepted == 1
    assert stage.assigned(job) == {1: batch}
    # The new owner still has it in hand, until it says so itself.
    assert stage.in_hand(successor) == (2, 2 * COST, 0)
    assert stage.commit(batch, job, successor, [0, 1], "again") == CommitResult(accepted=1, dropped=1, job_done=True)
    assert stage.in_hand(successor) == (0, 0, 0)
    assert stage.ledger.finish(batch, successor) == 0
    assert stage.results(job) == [output(0, "late"), output(1, "again")]


def test_a_late_commit_of_what_is_done_is_counted_and_dropped(stage, session):
    job = stage.job(1)
    old = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(old, job, session, count_attempt=True)
    successor = stage.worker("gpu1@host")
    batch = stage.batch(successor, job, [0])
    stage.commit(batch, job, successor, [0], "new")
    assert stage.commit(old, job, session, [0], "late") == CommitResult(accepted=0, dropped=1, job_done=False)
    assert stage.results(job) == [output(0, "new")]
    assert stage.queries.job(job).dropped == 1


def test_a_late_commit_does_not_bring_a_forgotten_session_back(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    row = stage.session(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert stage.sessions.forget(row)
    stage.commit(batch, job, session, [0])
    assert not stage.has_key(stage.keys.session(session).record)


def test_a_commit_without_its_sessions_record_does_not_make_one(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.redis.delete(stage.keys.session(session).record)
    stage.commit(batch, job, session, [0])
    assert stage.ledger.finish(batch, session) == 0
    assert not stage.has_key(stage.keys.session(session).record)


def test_a_late_commit_leaves_no_key_of_a_closed_job_without_an_end(stage):
    job = stage.finished_job(1)
    stage.ledger.close(job, 60)
    stage.commit("", job, "", [0, 1])
    assert all(stage.redis.ttl(key) != -1 for key in stage.keys.job(job).all())


def test_eight_at_once_give_each_request_one_output(stage, session):
    job = stage.job(30)
    batch = stage.batch(session, job, range(30))
    replies = race(*(lambda i=i: stage.commit(batch, job, session, range(30), str(i)) for i in range(8)))
    assert sum(reply.accepted for reply in replies) == 30
    assert sum(reply.dropped for reply in replies) == 7 * 30
    assert [reply.job_done for reply in replies].count(True) == 1
    assert sorted(item.index for item in stage.results(job)) == list(range(30))
    assert stage.in_hand(session) == (0, 0, 0)


def test_one_by_one_in_any_order_from_eight_at_once(stage, session):
    job = stage.job(12)
    batch = stage.batch(session, job, range(12))

    def commit_all(first):
        order = [(first + step) % 12 for step in range(12)]
        return sum(stage.commit(batch, job, session, [index]).accepted for index in order)

    assert sum(race(*(lambda first=first: commit_all(first) for first in range(8)))) == 12
    record = stage.queries.job(job)
    assert (record.state, record.done, record.dropped) == (JobState.DONE, 12, 7 * 12)
    assert stage.ledger.finish(batch, session) == 0

import pytest

from tests.support.racing import race
from tests.support.stage import COST


@pytest.fixture
def session(stage):
    return stage.worker()


def attempts(stage, job, count):
    return [stage.queries.attempts(job, index) for index in range(count)]


def test_everything_is_pending_again_and_the_batch_ends(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 2])
    assert stage.ledger.release(batch, job, session, count_attempt=False) == 2
    assert stage.pending(job) == [0, 1, 2]
    assert stage.assigned(job) == {}
    assert stage.queries.batches(session) == []
    assert not stage.has_key(stage.keys.batch(batch).record)
    assert stage.in_hand(session) == (0, 0, 0)


def test_a_request_comes_back_to_its_old_place(stage, session):
    job = stage.job(12)
    batch = stage.batch(session, job, [2, 10])
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert stage.pending(job) == list(range(12))


def test_an_attempt_counts_where_asked(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert attempts(stage, job, 2) == [1, 1]
    assert [item.attempts for item in stage.queries.pending(job, 10)] == [1, 1]


def test_no_attempt_counts_where_not_asked(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert attempts(stage, job, 1) == [0]


def test_a_batch_that_was_never_claimed_counts_no_attempt(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    assert stage.ledger.release(batch, job, session, count_attempt=True) == 1
    assert attempts(stage, job, 1) == [0]


def test_releasing_twice_counts_once(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    assert stage.ledger.release(batch, job, session, count_attempt=True) == 1
    assert stage.ledger.release(batch, job, session, count_attempt=True) == 0
    assert attempts(stage, job, 1) == [1]
    assert stage.in_hand(session) == (0, 0, 0)


def test_an_attempt_counts_only_after_the_losses_that_are_forgiven(stage, session):
    job = stage.job(2)
    for lost in range(1, 4):
        batch = stage.batch(session, job, [0])
        for _ in range(2):
            stage.ledger.release(batch, job, session, count_attempt=True, forgiven=2)
        assert stage.queries.losses(job, 0) == lost
        assert attempts(stage, job, 2) == [max(0, lost - 2), 0]
    batch = stage.batch(session, job, [0])
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert (stage.queries.losses(job, 0), attempts(stage, job, 1)) == (3, [2])
    stage.commit("", job, "", [0])
    assert not stage.has_key(stage.keys.job(job).losses)


@pytest.mark.parametrize("how", [{"count_attempt": False, "forgiven": 2}, {"count_attempt": True, "forgiven": 0}])
def test_no_loss_counts_where_not_asked(stage, session, how):
    job = stage.job(1)
    stage.ledger.release(stage.batch(session, job, [0]), job, session, **how)
    assert stage.queries.losses(job, 0) == 0


def test_a_batch_that_was_never_claimed_counts_no_loss(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0], claimed=False)
    assert stage.ledger.release(batch, job, session, count_attempt=True, forgiven=2) == 1
    assert stage.queries.losses(job, 0) == 0


def test_a_second_release_leaves_the_next_owner_alone(stage, session):
    job = stage.job(1)
    old = stage.batch(session, job, [0])
    stage.ledger.release(old, job, session, count_attempt=True)
    successor = stage.worker("gpu1@host")
    batch = stage.batch(successor, job, [0])
    assert stage.ledger.release(old, job, session, count_attempt=True) == 0
    assert stage.assigned(job) == {0: batch}
    assert attempts(stage, job, 1) == [1]


def test_another_session_releases_nothing(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    assert stage.ledger.release(batch, job, stage.worker("gpu1@host"), count_attempt=True) == 0
    assert stage.assigned(job) == {0: batch}


def test_what_is_done_does_not_come_back(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2])
    stage.commit(batch, job, session, [0])
    stage.commit("", job, "", [1])  # by another, while it was in this batch
    assert stage.ledger.release(batch, job, session, count_attempt=True) == 1
    assert stage.pending(job) == [2]
    assert attempts(stage, job, 3) == [0, 0, 1]
    assert stage.in_hand(session) == (0, 0, 0)


def test_some_requests_leave_a_batch_that_goes_on(stage, session):
    job = stage.job(3)
    batch = stage.batch(session, job, [0, 1, 2], isolated=True)
    assert stage.ledger.release(batch, job, session, count_attempt=True, indices=[1]) == 1
    assert stage.pending(job) == [1]
    assert attempts(stage, job, 3) == [0, 1, 0]
    assert stage.queries.batch_indices(batch) == (0, 2)
    assert stage.in_hand(session) == (2, 2 * COST, 1)
    stage.commit(batch, job, session, [0, 2])
    assert stage.ledger.finish(batch, session) == 0
    assert stage.in_hand(session) == (0, 0, 0)


def test_some_requests_released_twice_count_once(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.ledger.release(batch, job, session, count_attempt=True, indices=[0])
    assert stage.ledger.release(batch, job, session, count_attempt=True, indices=[0, 7]) == 0
    assert attempts(stage, job, 2) == [1, 0]
    assert stage.in_hand(session) == (1, COST, 0)


def test_a_request_released_alone_and_given_to_another_is_the_others(stage, session):
    job = stage.job(2)
    first = stage.batch(session, job, [0, 1])
    stage.ledger.release(first, job, session, count_attempt=True, indices=[0])
    successor = stage.worker("gpu1@host")
    second = stage.batch(successor, job, [0])
    assert stage.ledger.release(first, job, session, count_attempt=True) == 1
    assert stage.pending(job) == [1]
    assert stage.assigned(job) == {0: second}


def test_an_isolated_batch_ends_the_isolation(stage, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0], isolated=True)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert stage.session(session).isolated == 0


def test_a_release_of_a_forgotten_session_does_not_bring_it_back(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    keys = stage.keys.session(session)
    stage.redis.delete(keys.record)
    stage.redis.zrem(stage.keys.sessions, session)
    assert stage.ledger.release(batch, job, session, count_attempt=True) == 1
    assert not stage.has_key(keys.record)
    assert not stage.has_key(keys.batches)


def test_a_batch_without_a_record_is_taken_off_its_session(stage, session):
    stage.redis.sadd(stage.keys.session(session).batches, "ghost")
    assert stage.ledger.release("ghost", "job", session, count_attempt=True) == 0
    assert stage.session(session).batches == 0


def test_a_release_wakes_the_driver(stage, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.wakes()
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert stage.wakes()


def test_two_redeliverers_at_once_count_one_attempt(stage, session):
    job = stage.job(20)
    batch = stage.batch(session, job, range(20))
    replies = race(*[lambda: stage.ledger.release(batch, job, session, count_attempt=True)] * 4)
    assert sorted(replies) == [0, 0, 0, 20]
    assert attempts(stage, job, 20) == [1] * 20


def test_a_release_and_commits_at_once_lose_nothing(stage, session):
    job = stage.job(40)
    batch = stage.batch(session, job, range(40))
    calls = [lambda i=i: stage.commit(batch, job, session, [i]).accepted for i in range(0, 40, 5)]
    released, *accepted = race(lambda: stage.ledger.release(batch, job, session, count_attempt=True), *calls)
    assert accepted == [1] * 8
    assert 32 <= released <= 40
    assert stage.pending(job) == [index for index in range(40) if index % 5]
    assert stage.in_hand(session) == (0, 0, 0)

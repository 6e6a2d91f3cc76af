"""Following the jobs that wait, against the real commands: every change is seen, and nothing else is read."""

import pytest

from broker import waiting
from broker.errors import BrokerUnavailableError
from broker.queries import Queries


@pytest.fixture
def read(monkeypatch):
    """The ids of the jobs whose descriptions were read."""
    described, ids = Queries.described, []

    def note(queries, job_ids):
        ids.extend(job_ids)
        return described(queries, job_ids)

    monkeypatch.setattr(Queries, "described", note)
    return ids


def changes(follower):
    found = follower.read()
    return [job.id for job in found.joined], set(found.left)


def test_at_first_all_that_wait_are_read_with_what_they_are(stage):
    job = stage.job(2, model="m", priority=3, user="me", weight=0.5, deadline_s=60)
    found = stage.store.waiting().read()
    assert [item.id for item in found.joined] == [job]
    assert (found.joined[0].model, found.joined[0].priority, found.joined[0].user) == ("m", 3, "me")
    assert not found.left


def test_what_did_not_change_is_not_read_again(stage, read):
    first, follower = stage.job(1), stage.store.waiting()
    follower.read()
    second = stage.job(1)
    assert changes(follower) == ([second], set())
    assert changes(follower) == ([], set())
    assert read == [first, second]


def test_a_job_leaves_with_its_last_pending_request_and_comes_back_with_one(stage, monkeypatch):
    session, job, follower = stage.worker(), stage.job(2), stage.store.waiting()
    follower.read()
    monkeypatch.setattr(follower, "_read_all", None)  # every change is noted
    batch = stage.batch(session, job, [0])
    assert changes(follower) == ([], set())
    stage.batch(session, job, [1])
    assert changes(follower) == ([], {job})
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert changes(follower) == ([job], set())
    stage.commit("", job, "", [0])
    assert changes(follower) == ([], {job})
    stage.commit("", job, "", [1])
    stage.ledger.close(job, 60)
    assert changes(follower) == ([], set())


def test_of_many_changes_of_a_job_the_last_counts(stage):
    session, job, follower = stage.worker(), stage.job(1), stage.store.waiting()
    follower.read()
    batch = stage.batch(session, job, [0])
    stage.ledger.release(batch, job, session, count_attempt=False)
    assert changes(follower) == ([job], set())
    stage.batch(session, job, [0])
    other = stage.job(1)
    stage.commit("", other, "", [0])
    assert changes(follower) == ([], {job, other})


@pytest.mark.parametrize("lose", ["delete", "trim"])
def test_who_missed_changes_reads_all_that_wait(stage, monkeypatch, lose):
    kept, gone, follower = stage.job(1), stage.job(1), stage.store.waiting()
    follower.read()
    stage.commit("", gone, "", [0])
    new = stage.job(1)
    if lose == "delete":
        stage.redis.delete(stage.keys.waiting_changes)
    else:
        stage.redis.xtrim(stage.keys.waiting_changes, maxlen=1)
    assert changes(follower) == ([new], {gone})
    stage.commit("", kept, "", [0])
    assert changes(follower) == ([], {kept})


def test_more_changes_than_are_read_at_once_are_not_lost(stage, monkeypatch):
    monkeypatch.setattr(waiting, "MOST_CHANGES", 3)
    stage.job(1)
    follower = stage.store.waiting()
    follower.read()
    new = [stage.job(1) for _ in range(5)]
    found, left = changes(follower)
    assert (sorted(found), left) == (sorted(new), set())


def test_changes_that_nobody_noted_are_found(stage):
    """As made by a program of an older version."""
    job, follower = stage.job(1), stage.store.waiting()
    follower.read()
    stage.redis.zrem(stage.keys.waiting, f"{job} ")
    assert changes(follower) == ([], {job})


def test_a_reading_that_failed_is_made_again(stage, monkeypatch):
    stage.job(1)
    follower = stage.store.waiting()
    follower.read()
    job = stage.job(1)
    with monkeypatch.context() as patch:
        patch.setattr(Queries, "described", fail)
        with pytest.raises(BrokerUnavailableError):
            follower.read()
    assert changes(follower) == ([job], set())


def fail(queries, job_ids):
    raise BrokerUnavailableError("gone")


def test_a_job_that_cannot_be_read_is_left_out_and_costs_no_more_readings(stage, read):
    broken, follower = stage.job(1), stage.store.waiting()
    stage.redis.hset(stage.keys.job(broken).record, "priority", "many")
    assert changes(follower) == ([], set())
    job = stage.job(1)
    assert changes(follower) == ([job], set())
    assert read == [broken, job]


def test_only_the_newest_changes_are_kept(stage):
    stage.redis.xtrim(stage.keys.waiting_changes, maxlen=0)
    pipeline = stage.redis.pipeline(transaction=False)
    for _ in range(11_000):
        pipeline.xadd(stage.keys.waiting_changes, {"x": 0})
    pipeline.execute()
    stage.job(1)
    assert 10_000 <= stage.redis.xlen(stage.keys.waiting_changes) < 10_200

import base64
import json
import uuid

import pytest

from broker.celery_app import send_batch
from broker.ledger import NotLeaderError
from broker.states import WorkerState
from broker.topology import queue_name
from tests.support.celery_queue import messages
from tests.support.racing import race
from tests.support.stage import COST, LEADER


def assign(stage, session, batch, job, indices, *, token=LEADER, isolated=False):
    return stage.ledger.assign(token, session, batch, job, indices, isolated=isolated)


def test_pending_requests_become_one_batch(stage):
    session, job = stage.worker(), stage.job(3)
    assert assign(stage, session, "b", job, [0, 2]) == 2
    assert stage.pending(job) == [1]
    assert stage.assigned(job) == {0: "b", 2: "b"}
    assert stage.queries.batch_indices("b") == (0, 2)


def test_the_batch_names_its_owner(stage):
    session, job = stage.worker(), stage.job(2)
    assign(stage, session, "b", job, [0, 1])
    (batch,) = stage.queries.batches(session)
    assert (batch.id, batch.job, batch.session, batch.state) == ("b", job, session, "assigned")
    assert (batch.size, batch.tokens, batch.isolated) == (2, 2 * COST, False)
    assert stage.redis.hget(stage.keys.batch("b").record, "epoch") == b"1"


def test_the_session_counts_what_it_holds(stage):
    session, job = stage.worker(), stage.job(4)
    assign(stage, session, "a", job, [0, 1])
    assign(stage, session, "b", job, [2], isolated=True)
    assert stage.in_hand(session) == (3, 3 * COST, 1)
    assert stage.session(session).batches == 2


def test_what_requests_are_expected_to_take_is_counted_and_given_back(stage):
    session, job = stage.worker(), stage.job(3)
    assert stage.ledger.assign(LEADER, session, "b", job, [0, 2], tokens=[5, 6]) == 2
    assert stage.in_hand(session) == (2, 11, 0)
    stage.ledger.claim("b", job, session)
    stage.commit("b", job, session, [2])
    assert stage.in_hand(session) == (1, 5, 0)
    stage.ledger.release("b", job, session, count_attempt=False)
    assert stage.in_hand(session) == (0, 0, 0)


def queued(redis, worker):
    """The entries of a worker's queue, with what differs from message to message left out."""
    entries = [json.loads(entry) for entry in redis.lrange(queue_name(worker), 0, -1)]
    for entry in entries:
        entry["body"] = json.loads(base64.b64decode(entry["body"]))
        assert uuid.UUID(entry["properties"].pop("delivery_tag"))
        del entry["properties"]["reply_to"], entry["headers"]["origin"]
    return entries


def test_the_worker_gets_the_message_that_celery_would_send(stage, app):
    session, job = stage.worker("é ü@host"), stage.job(1)
    assert stage.ledger.assign(LEADER, session, "b", job, [0], worker="é ü@host") == 1
    (message,) = queued(stage.redis, "é ü@host")
    stage.redis.delete(queue_name("é ü@host"))
    send_batch(app, "é ü@host", "b", job)
    assert [message] == queued(stage.redis, "é ü@host")


def test_there_is_no_message_without_a_batch(stage):
    session, job = stage.worker(), stage.job(1)
    assign(stage, session, "b", job, [0])
    for batch in ("b", "c"):
        assert stage.ledger.assign(LEADER, session, batch, job, [0], worker="gpu0@host") == 0
    with pytest.raises(NotLeaderError):
        stage.ledger.assign("another", session, "d", stage.job(1), [0], worker="gpu0@host")
    assert messages(stage.redis) == []


def test_only_the_leader_may_assign(stage):
    session, job = stage.worker(), stage.job(1)
    with pytest.raises(NotLeaderError):
        assign(stage, session, "b", job, [0], token="another")
    assert stage.pending(job) == [0]


def test_a_leader_whose_lease_is_over_may_not_assign(stage):
    session, job = stage.worker(), stage.job(1)
    stage.redis.delete(stage.keys.leader)
    with pytest.raises(NotLeaderError):
        assign(stage, session, "b", job, [0])


@pytest.mark.parametrize("state", [state for state in WorkerState if state not in ("ready", "dead")])
def test_a_session_that_is_not_ready_gets_nothing(stage, state):
    session, job = stage.worker(state=state), stage.job(1)
    assert assign(stage, session, "b", job, [0]) == 0
    assert stage.pending(job) == [0]


def test_a_dead_session_gets_nothing(stage):
    session, job = stage.worker(), stage.job(1)
    stage.kill(session)
    assert assign(stage, session, "b", job, [0]) == 0
    assert stage.pending(job) == [0]


def test_an_unknown_session_gets_nothing(stage):
    job = stage.job(1)
    assert assign(stage, "nobody", "b", job, [0]) == 0
    assert stage.pending(job) == [0]
    assert not stage.has_key(stage.keys.session("nobody").record)


def test_a_stale_decision_takes_only_what_is_still_pending(stage):
    session, job = stage.worker(), stage.job(4)
    stage.batch(session, job, [0])
    stage.commit("", job, "", [1])
    assert assign(stage, session, "b", job, [0, 1, 2, 9]) == 1
    assert stage.queries.batch_indices("b") == (2,)


def test_where_nothing_is_left_no_batch_is_made(stage):
    session, job = stage.worker(), stage.job(1)
    stage.batch(session, job, [0])
    assert assign(stage, session, "b", job, [0], isolated=True) == 0
    assert not stage.has_key(stage.keys.batch("b").record)
    assert stage.session(session).batches == 1
    assert stage.in_hand(session) == (1, COST, 0)


def test_assigning_twice_changes_nothing(stage):
    session, job = stage.worker(), stage.job(2)
    assert assign(stage, session, "b", job, [0, 1]) == 2
    assert assign(stage, session, "b", job, [0, 1]) == 0
    assert stage.queries.batch_indices("b") == (0, 1)
    assert stage.in_hand(session) == (2, 2 * COST, 0)


def test_four_decisions_at_once_put_each_request_into_one_batch(stage):
    session, job = stage.worker(), stage.job(40)
    calls = [lambda name=name: assign(stage, session, name, job, range(40)) for name in "abcd"]
    assert sum(race(*calls)) == 40
    assert stage.pending(job) == []
    assert sorted(stage.assigned(job)) == list(range(40))
    assert stage.in_hand(session) == (40, 40 * COST, 0)


def test_overlapping_decisions_at_once_put_each_request_into_one_batch(stage):
    workers, job = [stage.worker(f"gpu{i}@host") for i in range(4)], stage.job(20)
    calls = [
        lambda i=i, index=index: assign(stage, workers[i], f"{i}-{index}", job, [index, index + 1])
        for i in range(4)
        for index in range(0, 19, 5)
    ]
    race(*calls)
    held = [
        index
        for worker in workers
        for batch in stage.queries.batches(worker)
        for index in stage.queries.batch_indices(batch.id)
    ]
    assert sorted(held + stage.pending(job)) == list(range(20))

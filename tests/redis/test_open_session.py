import pytest

from broker.errors import WorkerNameTakenError
from broker.records import BeatReply
from broker.states import WorkerState
from tests.support.racing import race
from tests.support.stage import heartbeat

NAME = "gpu0@host"


def open_session(stage, session_id, instance, **fields):
    return stage.sessions.open(session_id, NAME, instance, fields)


def test_a_session_begins(stage):
    assert open_session(stage, "s1", "i1", host="host", pid=7, device="cuda:0") == 1
    row = stage.session("s1")
    assert (row.id, row.worker, row.epoch, row.state) == ("s1", NAME, 1, WorkerState.STARTING)
    assert (row.host, row.pid, row.device) == ("host", 7, "cuda:0")
    assert (row.inhand_requests, row.inhand_tokens, row.isolated, row.drain) == (0, 0, 0, 0)
    assert row.beat_age_s < 5
    assert row.stalled_s < 5
    assert stage.sessions.current(NAME) == "s1"


def test_the_name_lives_on_for_a_limited_time(stage):
    open_session(stage, "s1", "i1")
    assert 0 < stage.redis.ttl(stage.keys.worker(NAME)) <= 7 * 86_400


def test_a_name_in_use_is_refused(stage):
    open_session(stage, "s1", "i1")
    with pytest.raises(WorkerNameTakenError, match=NAME):
        open_session(stage, "s2", "i2")
    assert stage.sessions.current(NAME) == "s1"
    assert stage.session("s2") is None
    assert stage.session("s1").state == WorkerState.STARTING


def test_the_same_instance_replaces_its_own_session(stage):
    open_session(stage, "s1", "i1")
    assert open_session(stage, "s2", "i1") == 2
    old = stage.session("s1")
    assert (old.state, old.cause, old.reason) == ("dead", "crashed", "its process was replaced")
    assert stage.sessions.current(NAME) == "s2"
    assert stage.session("s2").epoch == 2


def test_a_replaced_session_is_fenced_and_keeps_its_batches_until_they_are_released(stage):
    open_session(stage, "s1", "i1")
    stage.sessions.beat("s1", NAME, heartbeat())
    job = stage.job(1)
    batch = stage.batch("s1", job, [0])
    open_session(stage, "s2", "i1")
    assert stage.sessions.beat("s1", NAME, heartbeat()).reply is BeatReply.FENCED
    assert [item.id for item in stage.queries.batches("s1")] == [batch]
    assert stage.ledger.release(batch, job, "s1", count_attempt=True) == 1


def test_another_instance_gets_the_name_of_a_dead_session(stage):
    open_session(stage, "s1", "i1")
    stage.kill("s1")
    assert open_session(stage, "s2", "i2") == 2
    assert stage.session("s1").reason == "killed"


def test_another_instance_gets_the_name_when_the_lease_is_over(stage):
    open_session(stage, "s1", "i1")
    stage.age_beat("s1", stage.store.settings.heartbeat_timeout - 1)
    with pytest.raises(WorkerNameTakenError):
        open_session(stage, "s2", "i2")
    stage.age_beat("s1", 1)
    assert open_session(stage, "s2", "i2") == 2
    assert stage.session("s1").state == "dead"


def test_another_instance_gets_the_name_of_a_forgotten_session(stage):
    open_session(stage, "s1", "i1")
    stage.kill("s1")
    assert stage.sessions.forget(stage.session("s1"))
    assert open_session(stage, "s2", "i2") == 2


def test_the_epoch_grows_with_every_session(stage):
    assert [open_session(stage, f"s{i}", "i1") for i in range(4)] == [1, 2, 3, 4]


def test_opening_again_after_a_lost_answer_keeps_the_session(stage):
    open_session(stage, "s1", "i1")
    assert open_session(stage, "s1", "i1") == 2
    row = stage.session("s1")
    assert (row.state, row.epoch) == (WorkerState.STARTING, 2)
    assert stage.sessions.beat("s1", NAME, heartbeat()).reply is BeatReply.GO_ON


def test_of_many_instances_at_once_one_gets_the_name(stage):
    def attempt(number):
        try:
            return open_session(stage, f"s{number}", f"i{number}")
        except WorkerNameTakenError:
            return 0

    replies = race(*(lambda number=number: attempt(number) for number in range(8)))
    assert sorted(replies) == [0] * 7 + [1]
    assert stage.sessions.current(NAME) == f"s{replies.index(1)}"
    assert len(stage.sessions.table()) == 1


def test_the_name_changing_hands_meanwhile_is_looked_at_again(stage):
    """All are of one instance, so each replaces the one before; none is left alive but the last."""
    epochs = race(*(lambda number=number: open_session(stage, f"s{number}", "i1") for number in range(6)))
    assert sorted(epochs) == [1, 2, 3, 4, 5, 6]
    alive = [row.id for row in stage.sessions.table() if row.state != "dead"]
    assert alive == [f"s{epochs.index(6)}"]


def test_the_table_is_in_order_of_names(stage):
    for name in ("gpu2@a", "gpu0@b", "gpu1@a"):
        stage.worker(name)
    assert [row.worker for row in stage.sessions.table()] == ["gpu0@b", "gpu1@a", "gpu2@a"]

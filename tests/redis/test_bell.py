import msgspec
import pytest

from broker.bell import Bell
from broker.store import Store
from tests.support.stage import Stage
from tests.support.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture
def bell(store):
    bell = store.bell()
    bell.wait(0.001)  # it listens from now on
    yield bell
    bell.close()


@pytest.fixture
def rings(stage):
    """How often it has rung since the last call: as many messages as are before one of our own."""
    listener = stage.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(stage.keys.urgent)

    def count():
        stage.redis.publish(stage.keys.urgent, "mine")
        heard = []
        while (message := listener.get_message(timeout=PATIENCE_S)) is None or message["data"] != b"mine":
            heard.append(message)
        return sum(message is not None for message in heard)

    count()
    yield count
    listener.close()


@pytest.mark.parametrize(
    ("waiting", "priority", "expected"),
    [
        ([], 10, 0),
        ([0], 0, 0),
        ([10], 0, 0),
        ([0], 10, 1),
        ([0], 1, 1),
        ([-100], -99, 1),
        ([-10, 10], 0, 0),
        ([0, 10], 10, 1),
        ([10, 10], 10, 0),
    ],
)
def test_it_rings_for_the_highest_class_that_waits_while_a_lower_one_does(stage, rings, waiting, priority, expected):
    for other in waiting:
        stage.job(1, priority=other)
    rings()
    stage.job(1, priority=priority)
    assert rings() == expected


def test_it_rings_for_new_requests_only(stage, rings):
    stage.job(1)
    job_id = stage.job(1, priority=1, last=False)
    assert rings() == 1
    stage.ledger.submit(job_id, "", [], offset=1, last=False)
    assert rings() == 0


def test_who_listens_hears_it_once(stage, bell):
    stage.job(1)
    stage.job(1, priority=1)
    assert bell.wait(PATIENCE_S)
    assert not bell.wait(0.001)


def test_what_it_rang_for_can_be_forgotten(stage, bell, rings):
    for priority in range(3):
        stage.job(1, priority=priority)
    assert rings() == 2
    stage.redis.ping()  # all that was sent has come
    bell.forget()
    assert not bell.wait(0.001)


def test_a_crowd_of_messages_is_left_behind_unread(stage, bell, monkeypatch):
    monkeypatch.setattr("broker.bell.MOST_READ", 2)
    for _ in range(5):
        stage.redis.publish(stage.keys.urgent, 1)
    wait_until(lambda: bell._listening().connection.can_read(0.0))
    bell.forget()
    assert not bell.wait(0.001)
    stage.redis.publish(stage.keys.urgent, 1)
    assert bell.wait(PATIENCE_S)


@pytest.mark.parametrize("refused", ["subscribe", "publish"])
def test_where_redis_lets_nobody_ring_or_listen_all_goes_on(stage, settings, caplog, refused):
    stage.redis.execute_command("ACL", "SETUSER", "d", "on", ">p", "+@all", f"-{refused}", "~*", "&*")
    url = settings.broker_url.replace("redis://", "redis://d:p@")
    store = Store(msgspec.structs.replace(settings, broker_url=url))
    bell = store.bell()
    try:
        low, high = Stage(store).job(1), Stage(store).job(1, priority=1)
        assert not bell.wait(0.001)
        bell.forget()
        assert stage.pending(low) == stage.pending(high) == [0]
        assert caplog.text.count("urgent requests will wait") == (refused == "subscribe")
    finally:
        bell.close()
        store.close()
        stage.redis.execute_command("ACL", "DELUSER", "d")


def test_who_never_listened_has_nothing_to_close(store):
    bell = Bell(store.redis, store.keys, store.url)
    before = store.redis.info("stats")["total_connections_received"]
    bell.close()
    assert store.redis.info("stats")["total_connections_received"] == before
    assert store.redis.pubsub_numsub(store.keys.urgent) == [(store.keys.urgent.encode(), 0)]

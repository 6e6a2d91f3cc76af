import logging

import pytest

from broker import presence as module
from broker.connection import connect
from broker.errors import BrokerUnavailableError
from broker.presence import ASK_EVERY_S, Presence, own_name
from broker.settings import BrokerSettings
from tests.support.clock import FakeClock
from tests.support.waiting import wait_until


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def presence(store, clock):
    return store.presence(clock)


@pytest.fixture
def connections(settings, store):
    """Makes a client, and names its connection."""
    clients = []

    def make():
        clients.append(connect(settings))
        return clients[-1], own_name(clients[-1], settings.broker_url)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def one(connections):
    return connections()


def end(store, client, name):
    client.close()
    number = name.rpartition(":")[2]
    wait_until(lambda: not store.redis.client_list(client_id=[number]), what="the end of the connection")


def test_only_those_that_are_closed_are_said_to_be(presence, connections, store):
    (first, closed), (_, still_open) = connections(), connections()
    end(store, first, closed)
    assert presence.closed([closed, still_open]) == {closed}


def test_a_connection_that_is_made_anew_has_another_name(presence, store, settings, one):
    client, before = one
    store.redis.client_kill_filter(_id=int(before.rpartition(":")[2]))
    after = own_name(client, settings.broker_url)
    assert after != before
    assert presence.closed([before, after]) == {before}


@pytest.mark.parametrize(
    "name", ["", "no number", "{run}", "{run}:", "{run}:0", "{run}:-1", "{run}:x", "{run}:²", "other:1"]
)
def test_what_is_no_name_of_this_run_is_not_known_and_harms_no_other(presence, store, one, name):
    client, closed = one
    end(store, client, closed)
    odd = name.format(run=closed.partition(":")[0])
    assert presence.closed([odd, closed]) == {closed}


def test_it_asks_now_and_then_only(presence, clock, store, one):
    client, name = one
    assert presence.closed([name]) == set()
    end(store, client, name)
    assert presence.closed([name]) == set()
    clock.advance(ASK_EVERY_S)
    assert presence.closed([name]) == {name}


def test_of_very_many_each_has_its_turn(presence, clock, store, connections, monkeypatch):
    monkeypatch.setattr(module, "ASK_AT_MOST", 2)
    names = []
    for _ in range(5):
        client, name = connections()
        end(store, client, name)
        names.append(name)
    found = []
    for _ in range(3):
        found.append(presence.closed(names))
        clock.advance(ASK_EVERY_S)
    assert [len(part) for part in found] == [2, 2, 2]
    assert set().union(*found) == set(names)


def test_nobody_to_ask_about_is_nothing_to_ask(clock):
    assert Presence(None, "", clock).closed([]) == set()


def limited(server, store, clock, refused):
    store.redis.execute_command("ACL", "SETUSER", "d", "on", ">p", "+@all", f"-{refused}", "~*", "&*")
    url = server.url.replace("://", "://d:p@")
    return Presence(connect(BrokerSettings(broker_url=url)), url, clock)


@pytest.mark.parametrize("refused", ["client|list", "info"])
def test_where_redis_does_not_tell_that_is_said_once_and_not_asked_again(server, store, clock, one, caplog, refused):
    client, name = one
    end(store, client, name)
    presence = limited(server, store, clock, refused)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert presence.closed([name]) == set()
            clock.advance(1.0)
    store.redis.execute_command("ACL", "SETUSER", "d", "+@all")
    assert presence.closed([name]) == set()
    store.redis.execute_command("ACL", "DELUSER", "d")
    presence._redis.close()
    (record,) = caplog.records
    assert "by their silence only" in record.getMessage()
    assert "no permissions" in record.getMessage()


def test_a_redis_that_is_busy_is_asked_again(store, presence, clock, settings, one, in_background):
    """Somebody's script runs for too long; the refusal passes."""
    client, name = one
    end(store, client, name)
    busy = connect(settings)
    store.redis.config_set("busy-reply-threshold", 1)
    running = in_background(lambda: busy.eval("while true do end", 0))

    def is_unavailable():
        clock.advance(1.0)
        try:
            presence.closed([name])
        except BrokerUnavailableError:
            return True
        return False

    try:
        wait_until(is_unavailable, what="a busy server")
    finally:
        store.redis.script_kill()
        assert running.exception(10) is not None
        store.redis.config_set("busy-reply-threshold", 5000)
    clock.advance(1.0)
    assert presence.closed([name]) == {name}
    busy.close()


def test_an_outage_is_not_taken_for_a_refusal(clock, one):
    url = "redis://127.0.0.1:1/0"
    gone = Presence(connect(BrokerSettings(broker_url=url)), url, clock)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError):
            gone.closed([one[1]])
        clock.advance(1.0)

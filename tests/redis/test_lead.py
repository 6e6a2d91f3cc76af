import pytest

from tests.support.racing import race
from tests.support.waiting import wait_until


@pytest.fixture
def drivers(store):
    return [store.leadership(f"driver-{number}", 600) for number in range(4)]


def test_the_first_leads(store, drivers):
    assert not store.has_leader()
    assert drivers[0].acquire_or_renew() == 1
    assert store.has_leader()


def test_a_second_stands_by(drivers):
    drivers[0].acquire_or_renew()
    assert drivers[1].acquire_or_renew() == 0
    assert drivers[0].acquire_or_renew() == 1


def test_renewing_keeps_the_term_and_prolongs_the_lease(store, drivers):
    drivers[0].acquire_or_renew()
    store.redis.pexpire(store.keys.leader, 10_000)
    assert drivers[0].acquire_or_renew() == 1
    assert store.redis.pttl(store.keys.leader) > 10_000


def test_after_the_lease_another_leads_in_a_higher_term(store, drivers):
    drivers[0].acquire_or_renew()
    store.redis.pexpire(store.keys.leader, 1)
    wait_until(lambda: not store.has_leader())
    assert drivers[1].acquire_or_renew() == 2
    assert drivers[0].acquire_or_renew() == 0


def test_a_leader_that_comes_back_gets_a_new_term(store, drivers):
    drivers[0].acquire_or_renew()
    store.redis.delete(store.keys.leader)
    assert drivers[0].acquire_or_renew() == 2


def test_of_four_at_once_one_leads(store, drivers):
    for term in range(1, 11):
        assert sorted(race(*(driver.acquire_or_renew for driver in drivers))) == [0, 0, 0, term]
        store.redis.delete(store.keys.leader)

import threading
import weakref

import pytest

from broker.errors import BrokerUnavailableError
from driver.lease import LEASE_S, RENEW_S, Leases
from tests.support.waiting import wait_until


class Holder:
    """Adds to an open job."""

    def __init__(self, job_id):
        self.job_id = job_id


class Ledger:
    """Notes whose lease is renewed; jobs are open as long as it says."""

    def __init__(self):
        self.renewed = []
        self.sealed = set()
        self.answers = True

    def renew(self, job_id):
        if not self.answers:
            raise BrokerUnavailableError("away")
        self.renewed.append(job_id)
        return job_id not in self.sealed


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def leases(ledger):
    leases = Leases(ledger.renew, 600.0)
    yield leases
    leases.close()


@pytest.fixture
def quick(ledger):
    leases = Leases(ledger.renew, 0.01)
    yield leases
    leases.close()


def test_a_few_renewals_may_be_lost():
    assert 3 * RENEW_S < LEASE_S


def test_every_open_job_is_renewed_again_and_again(leases, ledger):
    holders = [Holder("a"), Holder("b")]
    for holder in holders:
        leases.hold(holder)
        leases.hold(holder)
    assert [leases.renew(), leases.renew()] == [True, True]
    assert sorted(ledger.renewed) == ["a", "a", "b", "b"]


def test_one_that_is_let_go_or_takes_no_more_is_not(leases, ledger):
    holders = [Holder(name) for name in ("open", "sealed", "given up")]
    for holder in holders:
        leases.hold(holder)
    ledger.sealed.add("sealed")
    leases.let_go("given up")
    leases.let_go("given up")
    leases.renew()
    leases.renew()
    assert sorted(ledger.renewed) == ["open", "open", "sealed"]


def test_who_drops_what_it_feeds_with_gives_the_job_up(leases, ledger):
    holder = Holder("a")
    leases.hold(holder)
    del holder
    assert not leases.renew()
    assert ledger.renewed == []


def test_an_outage_costs_no_lease(leases, ledger):
    holder = Holder("a")
    leases.hold(holder)
    ledger.answers = False
    assert leases.renew()
    ledger.answers = True
    assert leases.renew()
    assert ledger.renewed == ["a"]


def test_who_begins_to_hold_while_others_are_renewed_disturbs_nobody(leases, ledger):
    holders = [Holder("a"), Holder("b")]

    class Interrupted(weakref.WeakValueDictionary):
        def __iter__(self):
            for name in super().__iter__():
                yield name
                other = threading.Thread(target=leases.hold, args=(holders[1],), daemon=True)
                other.start()
                other.join(0.05)  # it may have to wait for the end of this loop

    leases._held = Interrupted()
    leases.hold(holders[0])
    assert leases.renew()
    assert ledger.renewed == ["a"]
    wait_until(lambda: "b" in leases._held)


def test_leases_are_renewed_by_themselves_also_after_a_pause_without_any(quick, ledger):
    for name in ("first", "second"):
        holder = Holder(name)
        quick.hold(holder)
        wait_until(lambda name=name: ledger.renewed.count(name) >= 3, what="renewals")
        quick.let_go(name)
        wait_until(lambda: quick._thread is None, what="the end of the thread")
    assert ledger.renewed == sorted(ledger.renewed)  # the first no more, once it was let go


def test_what_is_closed_renews_nothing(quick, ledger):
    quick.close()
    holder = Holder("a")
    quick.hold(holder)
    assert quick._thread is None

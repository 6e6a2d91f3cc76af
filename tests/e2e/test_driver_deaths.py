"""Drivers that die at the worst moment, and several at once: one leads, and work goes on."""

import signal
import threading

import pytest

from tests.support.faults.injected import DIED_UNTOLD
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until


@pytest.fixture
def leaders(cluster):
    """Who led in which term, as seen by looking all the time; two in one term are caught."""
    seen: dict[int, set[bytes]] = {}
    stopped = threading.Event()
    keys = cluster.store.keys

    def look():
        while not stopped.wait(0.005):
            token, term = cluster.redis.mget(keys.leader, keys.leader_term)
            if token is not None:
                seen.setdefault(int(term), set()).add(token)

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    stopped.set()
    thread.join()
    assert all(len(tokens) == 1 for tokens in seen.values())
    tokens = [next(iter(tokens)) for _, tokens in sorted(seen.items())]
    assert len(set(tokens)) == len(tokens), "a driver that lost the lead came back within its term"


def leads(driver):
    """Whether the driver said last that it leads."""
    return driver.log.rfind("driver leads") > driver.log.rfind("driver stands by")


def current_leader(cluster):
    """The driver that leads, once the lease of one that a test killed is over."""
    return wait_until(lambda: next((d for d in cluster.drivers if d.is_running and leads(d)), None))


def test_a_batch_whose_message_was_lost_with_its_driver_is_sent_by_the_next(cluster):
    cluster.end_drivers()
    broken = cluster.start_driver(fault="die_untold")
    asked = requests(8, tokens=20)
    job = cluster.client.submit(asked)
    assert broken.wait() == DIED_UNTOLD
    assert job.progress().running == len(asked) / 2, "assigned to one of the two workers, but nobody was told"

    cluster.start_driver()

    assert_each_done_once(cluster, job, asked)


def test_a_standby_takes_over_when_the_leader_is_killed(cluster, leaders):
    leader = current_leader(cluster)
    term = int(cluster.redis.get(cluster.store.keys.leader_term))
    standby = cluster.start_driver()
    asked = requests(64, tokens=150)
    job = cluster.client.submit(asked)
    cluster.busy("a")

    leader.send(signal.SIGKILL)

    wait_until(lambda: leads(standby), what="the standby's lead")
    assert_each_done_once(cluster, job, asked)
    assert [later for later in leaders if later > term] == [term + 1], "the lead changed once"


def test_a_leader_that_was_frozen_past_its_lease_stands_by_when_it_wakes(cluster, leaders):
    leader = current_leader(cluster)
    leader.send(signal.SIGSTOP)
    standby = cluster.start_driver()
    asked = requests(64, tokens=150)
    job = cluster.client.submit(asked)
    wait_until(lambda: leads(standby), what="the standby's lead")

    leader.send(signal.SIGCONT)

    wait_until(lambda: not leads(leader), what="the old leader stands by")
    assert_each_done_once(cluster, job, asked)
    assert leads(standby)
    assert leader.end() == 0


def test_workers_finish_what_they_have_while_no_driver_lives(cluster):
    asked = requests(16, tokens=100)
    job = cluster.client.submit(asked)
    wait_until(lambda: sum(row.running for row in cluster.client.workers()) == len(asked), what="all are generated")

    for driver in cluster.drivers:
        driver.send(signal.SIGKILL)

    assert_each_done_once(cluster, job, asked)


def test_a_driver_that_is_stopped_gives_up_the_lead_at_once(cluster, leaders):
    current_leader(cluster)

    cluster.end_drivers()

    assert not cluster.store.has_leader()

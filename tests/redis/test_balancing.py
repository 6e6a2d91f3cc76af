"""The driver's ticks against a real store, with workers played by the test: who is asked to give back."""

import pytest

from driver import balance_memory, balancing
from driver.planner import Plan
from driver.service import DriverService
from driver.settings import DriverSettings
from tests.support.clock import FakeClock
from tests.support.stage import LeaderlessStage, heartbeat
from tests.support.waiting import wait_until

SLOW, FAST = "slow@host", "fast@host"
SLOTS = 4
SPEEDS = {SLOW: 4.0, FAST: 400.0}


@pytest.fixture
def stage(store):
    return LeaderlessStage(store)


@pytest.fixture
def make_service(store, monkeypatch):
    monkeypatch.setattr(store.queries, "uptime_s", lambda: 86_400)
    monkeypatch.setattr(balance_memory, "HOLD_MS", 0)
    services = []

    def make():
        services.append(DriverService(store, DriverSettings(), FakeClock()))
        return services[-1]

    yield make
    for service in services:
        service.stop()
        service.run()


@pytest.fixture
def service(make_service):
    return make_service()


def beat(stage, session, name, **fields):
    """What the worker is asked to give back."""
    report = heartbeat(slots=SLOTS, decode_tokens_per_s=SPEEDS[name], **fields)
    return stage.sessions.beat(session, name, report).recalled


@pytest.fixture
def slow(stage, service):
    """A worker with all its slots in use and one more request, which waits; the only one when they came."""
    session = stage.worker(SLOW, slots=SLOTS, decode_tokens_per_s=SPEEDS[SLOW])
    stage.job(SLOTS + 1)
    service.tick()
    assert stage.in_hand(session)[0] == SLOTS + 1
    beat(stage, session, SLOW, running=SLOTS, waiting=1)
    return session


def join(stage):
    return stage.worker(FAST, slots=SLOTS, decode_tokens_per_s=SPEEDS[FAST])


def waits_on(stage, session):
    return beat(stage, session, SLOW, running=SLOTS, waiting=1)


def give_back(stage, session):
    """As a worker does."""
    (batch,) = stage.queries.batches(session)
    stage.ledger.claim(batch.id, batch.job, session)
    stage.ledger.release(batch.id, batch.job, session, count_attempt=False, indices=[SLOTS])


def test_who_holds_more_than_it_runs_gives_it_to_one_with_nothing_to_do(stage, service, slow):
    service.tick()
    assert waits_on(stage, slow) == 0  # there was nobody
    fast = join(stage)
    service.tick()
    assert waits_on(stage, slow) == 1

    give_back(stage, slow)
    assert service.tick() == 1
    (moved,) = stage.queries.batches(fast)
    assert stage.queries.batch_indices(moved.id) == (SLOTS,)


def test_nobody_is_asked_while_anything_is_pending(stage, service, slow, monkeypatch):
    join(stage)
    monkeypatch.setattr(service._planner, "plan", lambda *_: Plan())
    stage.job(1, last=False)
    service.tick()
    assert waits_on(stage, slow) == 0


def test_nobody_is_asked_twice_in_a_row(stage, service, slow):
    join(stage)
    service.tick()
    assert waits_on(stage, slow) == 1
    service.tick()
    assert waits_on(stage, slow) == 0


def test_an_order_that_came_to_nothing_is_given_again_after_a_while(stage, service, slow, monkeypatch):
    join(stage)
    service.tick()
    assert waits_on(stage, slow) == 1  # and the answer is lost on its way
    monkeypatch.setattr(balance_memory, "CALM_MS", 0)
    service.tick()
    assert waits_on(stage, slow) == 1


def test_who_was_asked_gets_nothing_new_at_once(stage, service, slow):
    fast = join(stage)
    service.tick()
    give_back(stage, slow)
    stage.job(150 * SLOTS)  # so many that the slow one would be of use
    service.tick()
    assert stage.in_hand(slow)[0] == SLOTS
    assert stage.in_hand(fast)[0] == SLOTS + 1


def test_a_new_leader_asks_once_more_at_most(stage, make_service, service, slow):
    join(stage)
    service.tick()
    service.stop()
    service.run()  # resigns: the order is there, and nobody has heard of it
    second = make_service()
    second.tick()
    assert second.leads
    assert [waits_on(stage, slow), waits_on(stage, slow)] == [1, 0]


def test_one_that_was_deposed_asks_nobody(stage, service, slow, store):
    join(stage)
    decide = service._planner.balance

    def just_then(*seen):
        store.redis.set(store.keys.leader, "another")
        return decide(*seen)

    service._planner.balance = just_then
    service.tick()
    assert not service.leads
    assert waits_on(stage, slow) == 0
    store.redis.delete(store.keys.leader)


def test_one_that_drains_is_relieved_though_the_other_is_slower(stage, service, slow, monkeypatch):
    monkeypatch.setitem(SPEEDS, FAST, 1.0)
    join(stage)
    service.tick()
    assert waits_on(stage, slow) == 0
    beat(stage, slow, SLOW, running=SLOTS, waiting=1, state="draining")
    service.tick()
    assert beat(stage, slow, SLOW, running=SLOTS, waiting=1, state="draining") == 1


def test_what_a_much_slower_worker_runs_is_asked_for_too(stage, service, slow, monkeypatch):
    monkeypatch.setattr(balancing, "MOVE_S", 0.0)
    fast = join(stage)
    told = []
    for beats in range(1, 6):
        report = {"slots": SLOTS, "running": SLOTS}
        stage.sessions.beat(fast, FAST, heartbeat(generated_tokens=10_000 * beats, **report))
        told.append(stage.sessions.beat(slow, SLOW, heartbeat(generated_tokens=beats, **report)))
        at_ms = stage.queries.server_time_ms()
        wait_until(lambda at_ms=at_ms: stage.queries.server_time_ms() > at_ms + 1)
        service.tick()
    assert [(answer.recalled, answer.begun) for answer in told if answer.recalled] == [(SLOTS, True)]

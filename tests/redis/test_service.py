"""The driver's tick against a real store: who acts, and what one round does."""

import logging
from itertools import pairwise

import msgspec
import pytest

from broker.bell import Bell
from broker.errors import BrokerUnavailableError
from broker.queries import Queries
from broker.states import WorkerState
from driver import pace
from driver.lease import LEASE_S
from driver.service import LEAD_S, DriverService
from driver.settings import DriverSettings
from tests.support.celery_queue import messages
from tests.support.clock import FakeClock
from tests.support.stage import COST, LeaderlessStage, heartbeat
from tests.support.waiting import wait_until

NAME = "gpu0@host"


@pytest.fixture
def stage(store):
    return LeaderlessStage(store)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make_service(store, clock, monkeypatch):
    # This server has just been started, and every beat would be forgiven.
    monkeypatch.setattr(store.queries, "uptime_s", lambda: 86_400)
    services = []

    def make(**options):
        service = DriverService(store, DriverSettings(**options), clock)
        services.append(service)
        return service

    yield make
    for service in services:
        service.stop()
        service.run()  # stopped: gives up the lead and closes


@pytest.fixture
def service(make_service):
    return make_service()


def go_on(service, clock, seconds, step_s=1.0):
    """Tick for so long; one jump would look as if everything had stood still."""
    end_s = clock.now_s() + seconds
    while clock.now_s() < end_s:
        clock.advance(min(step_s, end_s - clock.now_s()))
        service.tick()


def end_lease(store):
    store.redis.pexpire(store.keys.leader, 1)
    wait_until(lambda: not store.has_leader())


def test_the_first_tick_takes_the_lead(service, store):
    assert not service.leads
    assert service.tick() == 0
    assert service.leads
    assert 0 < store.redis.pttl(store.keys.leader) <= LEAD_S * 1000


def test_a_leader_assigns_and_wakes_the_worker(service, stage):
    session, job = stage.worker(), stage.job(3)
    assert service.tick() == 1
    (batch,) = stage.queries.batches(session)
    assert stage.queries.batch_indices(batch.id) == (0, 1, 2)
    assert messages(stage.redis) == [(batch.id, batch.id, job)]


def looks(store):
    """How often records have been read whole so far."""
    return store.redis.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"]


def test_a_leader_without_work_looks_at_the_workers_when_detection_is_due_only(make_service, stage, store, clock):
    service = make_service(detection_interval=1.0)
    stage.worker()
    service.tick()
    service.tick()
    before = looks(store)
    service.tick(changed=False)
    assert looks(store) == before
    clock.advance(1.0)
    service.tick(changed=False)
    assert looks(store) > before


@pytest.mark.parametrize("what", ["waits", "in hand"])
def test_a_leader_with_work_looks_at_every_tick(make_service, stage, store, what):
    service = make_service(max_batch_delay=0.0)
    stage.worker(slots=1)
    stage.job(3 if what == "waits" else 1)
    service.tick()
    service.tick()
    before = looks(store)
    service.tick(changed=False)
    assert looks(store) > before


def test_the_next_tick_assigns_nothing_twice(service, stage):
    stage.worker()
    stage.job(3)
    assert service.tick() == 1
    assert service.tick() == 0


def test_a_standby_does_nothing(make_service, stage):
    leader, standby = make_service(), make_service()
    leader.tick()
    session = stage.worker()
    stage.job(1)
    dead = stage.worker("gpu1@host")
    stage.kill(dead)
    assert standby.tick() == 0
    assert not standby.leads
    assert stage.queries.batches(session) == []
    assert stage.session(dead) is not None


def test_a_standby_takes_over_when_the_leader_resigns(make_service, stage):
    leader, standby = make_service(), make_service()
    leader.tick()
    standby.tick()
    leader.stop()
    leader.run()
    stage.worker()
    stage.job(1)
    assert standby.tick() == 1
    assert standby.leads


def test_a_standby_takes_over_when_the_lease_is_over(make_service, stage):
    leader, standby = make_service(), make_service()
    leader.tick()
    standby.tick()
    end_lease(stage.store)
    assert standby.tick() == 0
    assert standby.leads
    assert leader.tick() == 0
    assert not leader.leads


@pytest.mark.parametrize(("interval_s", "most_s"), [(0.1, 1.0), (0.5, 1.0), (2.0, 2.0)])
def test_the_lease_is_renewed_long_before_its_end_and_not_at_every_tick(
    make_service, clock, monkeypatch, interval_s, most_s
):
    service = make_service(schedule_interval=interval_s)
    renewals = []
    renew = service._leadership.acquire_or_renew
    monkeypatch.setattr(service._leadership, "acquire_or_renew", lambda: renewals.append(clock.now_s()) or renew())
    for _ in range(60):
        service.tick()
        clock.advance(interval_s)
    gaps = [later - earlier for earlier, later in pairwise([*renewals, clock.now_s()])]
    assert max(gaps) <= most_s + 0.01
    assert len(renewals) <= 60 * interval_s / most_s + 2


@pytest.mark.parametrize(
    ("tick_s", "change_after_s", "rest_s"),
    [(0.004, 0.0, 0.004), (0.004, 0.003, 0.001), (0.004, 0.005, None), (0.5, 0.0, 0.01)],
)
def test_while_a_worker_is_full_it_rests_after_a_tick_as_long_as_that_took(
    service, stage, store, clock, monkeypatch, tick_s, change_after_s, rest_s
):
    stage.worker(slots=4)
    stage.job(20)
    service.tick()
    rests = []
    monkeypatch.setattr(store.queries, "wait_for_change", lambda timeout_s: clock.advance(change_after_s))
    with monkeypatch.context() as patch:
        patch.setattr(Bell, "wait", lambda bell, timeout_s: rests.append(timeout_s))
        started_s = clock.now_s()
        clock.advance(tick_s)
        service._wait(started_s)
    assert rests == ([] if rest_s is None else [pytest.approx(rest_s)])


@pytest.mark.parametrize(("count", "rests"), [(0, False), (4, False), (5, True), (20, True)])
def test_who_comes_to_free_workers_waits_for_no_rest(service, stage, store, monkeypatch, count, rests):
    """Four slots, and one more request that waits at the worker."""
    stage.worker(slots=4)
    if count:
        stage.job(count)
    waits = []
    for _ in range(2):
        service.tick()
        monkeypatch.setattr(store.queries, "wait_for_change", lambda timeout_s: None)
        with monkeypatch.context() as patch:
            patch.setattr(Bell, "wait", lambda bell, timeout_s: waits.append(timeout_s))
            service._wait(service._clock.now_s() - 0.004)
    assert waits == ([pytest.approx(0.004)] * 2 if rests else [])


def test_a_rest_is_cut_short_by_who_ranks_before_those_that_wait(service, stage, store, monkeypatch):
    """It comes after the leader has looked."""
    monkeypatch.setattr(pace, "MAX_REST_S", 10.0)
    wait, heard = Bell.wait, []
    monkeypatch.setattr(Bell, "wait", lambda bell, timeout_s: heard.append(wait(bell, timeout_s)))
    session = stage.worker(slots=4)
    first = stage.job(20)
    service.tick()
    service._wait(service._clock.now_s() - 0.001)  # it listens from now on
    (batch,) = stage.queries.batches(session)
    stage.commit(batch.id, first, session, [0])
    monkeypatch.setattr(store.queries, "wait_for_change", lambda timeout_s: stage.job(1, priority=1))
    service._wait(service._clock.now_s() - 60.0)
    assert heard == [False, True]
    service.tick()
    assert stage.pending(first)[:1] == [5]
    assert store.queries.pending_count(first) == 15
    assert [row.inhand_requests for row in stage.sessions.table()] == [5]


def test_who_stands_by_listens_to_nothing(service, stage, store, monkeypatch):
    """Messages that it does not read would gather in Redis."""
    stage.worker(slots=4)
    stage.job(20)
    service.tick()
    monkeypatch.setattr(store.queries, "wait_for_change", lambda timeout_s: None)
    service._wait(service._clock.now_s() - 0.001)
    assert stage.redis.pubsub_numsub(stage.keys.urgent)[0][1] == 1
    stage.redis.set(stage.keys.leader, "another", px=60_000)
    service.tick()
    assert not service.leads
    service.stop()  # its wait is over at once
    service._wait(service._clock.now_s())
    wait_until(lambda: stage.redis.pubsub_numsub(stage.keys.urgent)[0][1] == 0)


def test_what_an_old_leader_left_half_done_is_done(make_service, stage, clock):
    """It died between the assignment and the message."""
    session, job = stage.worker(), stage.job(1)
    stage.redis.set(stage.keys.leader, "old")
    stage.ledger.assign("old", session, "b", job, [0])
    stage.redis.delete(stage.keys.leader)
    service = make_service()
    assert service.tick() == 0
    assert messages(stage.redis) == []
    stage.age_field(stage.keys.batch("b").record, "assigned_ms", 6)
    clock.advance(1.0)
    service.tick()
    assert messages(stage.redis) == [("b", "b", job)]


def test_losing_the_lead_in_the_middle_of_a_tick_assigns_nothing_and_is_said(service, stage, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "driver")
    stage.worker()
    job = stage.job(1)
    fronts = Queries.fronts

    def lose_the_lead(queries, job_ids, limit):
        stage.redis.set(stage.keys.leader, "another", ex=60)
        return fronts(queries, job_ids, limit)

    monkeypatch.setattr(Queries, "fronts", lose_the_lead)
    assert service.tick() == 0
    assert not service.leads
    assert stage.pending(job) == [0]
    assert service.tick() == 0
    assert [text for text in caplog.messages if text.startswith("driver ")] == ["driver leads", "driver stands by"]


def test_the_dead_are_recovered_and_their_work_assigned_in_one_tick(service, stage):
    dead, alive = stage.worker(), stage.worker("gpu1@host", state=WorkerState.LOADING)
    job = stage.job(2)
    assert service.tick() == 1
    stage.kill(dead)
    stage.sessions.beat(alive, "gpu1@host", heartbeat())
    assert service.tick() == 1
    assert [row.id for row in stage.sessions.table()] == [alive]
    assert sorted(stage.assigned(job)) == [0, 1]


def test_a_silent_worker_is_recovered(service, stage):
    silent = stage.worker()
    job = stage.job(1)
    service.tick()
    stage.age_beat(silent, 11)
    service.tick()
    assert stage.sessions.table() == []
    assert stage.pending(job) == [0]


def test_silence_is_not_trusted_just_after_redis_started(make_service, stage, clock, monkeypatch):
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 3)
    silent = stage.worker()
    stage.age_beat(silent, 11)
    service = make_service()
    service.tick()
    assert stage.session(silent) is not None
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 20)
    go_on(service, clock, 9.9)
    assert stage.session(silent) is not None
    go_on(service, clock, 0.2)
    assert stage.session(silent) is None


def test_silence_is_not_trusted_after_a_stall_that_no_call_failed_in(service, stage, clock, monkeypatch):
    """Redis stood still for longer than the timeout, and the client's retry hid it."""
    silent = stage.worker()
    service.tick()
    look = service._lookout.look

    def answer_late():
        clock.advance(12.0)
        stage.age_beat(silent, 12)
        return look()

    monkeypatch.setattr(service._lookout, "look", answer_late)
    service.tick()
    monkeypatch.undo()
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 86_400)
    assert stage.session(silent).state == "ready"
    go_on(service, clock, 9.9)
    assert stage.session(silent) is not None
    go_on(service, clock, 0.2)
    assert stage.session(silent) is None


def test_silence_is_not_trusted_after_the_server_clock_has_jumped(service, stage, clock, monkeypatch):
    """The machine was suspended: nobody's clock but the server's has moved, and everybody looks silent."""
    silent, job = stage.worker(), stage.job(1, last=False)
    service.tick()
    look = service._lookout.look

    def look_an_hour_later():
        seen = look()
        return msgspec.structs.replace(seen, now_ms=seen.now_ms + 3_600_000)

    monkeypatch.setattr(service._lookout, "look", look_an_hour_later)
    stage.age_beat(silent, 3600)
    service.tick()
    go_on(service, clock, 9.9)
    assert stage.session(silent) is not None
    assert stage.queries.job(job).state == "open"
    go_on(service, clock, 0.2)
    assert stage.session(silent) is None
    go_on(service, clock, LEASE_S, step_s=4.0)
    assert stage.queries.job(job).state == "running"


def test_silence_is_not_trusted_just_after_an_outage(service, stage, clock, in_background, monkeypatch):
    silent = stage.worker()
    service.tick()
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        service.stop()

    monkeypatch.setattr(service._stopped, "wait", pause)
    monkeypatch.setattr(service._lookout, "look", unavailable)
    service.run()
    monkeypatch.undo()
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 86_400)
    assert pauses == [0.5]
    stage.age_beat(silent, 11)
    go_on(service, clock, 9.9)
    assert stage.session(silent) is not None
    go_on(service, clock, 0.2)
    assert stage.session(silent) is None


@pytest.fixture
def killed(stage):
    """A worker whose connection is closed, and whose last beat is 4 s old; another worker beats."""
    session = stage.worker()
    stage.worker("gpu1@host", state="starting")
    pulse = stage.store.pulse(session, NAME)
    pulse.beat(heartbeat())
    number = stage.session(session).connection.rpartition(":")[2]
    pulse.close()
    wait_until(lambda: not stage.redis.client_list(client_id=[number]), what="the end of the connection")
    stage.age_beat(session, 4)
    return session


def test_a_killed_worker_is_found_while_nothing_else_happens(service, stage, clock, killed):
    clock.advance(1.0)
    stage.age_beat(killed, -4)
    service.tick()
    stage.age_beat(killed, 4)
    service.tick(changed=False)
    assert stage.session(killed) is not None
    clock.advance(1.0)
    service.tick(changed=False)
    assert stage.session(killed) is None


def test_a_killed_worker_is_found_between_two_reconciliations_while_there_is_work(make_service, stage, clock, killed):
    stage.age_beat(killed, -4)
    service, job = make_service(detection_interval=60.0), stage.job(1)
    assert service.tick() == 1
    stage.age_beat(killed, 4)
    clock.advance(0.1)
    service.tick(changed=False)
    assert stage.session(killed) is None
    assert stage.pending(job) == [0]


def test_a_killed_worker_is_found_by_a_driver_that_has_just_taken_the_lead(make_service, stage, killed):
    make_service().tick()
    assert stage.session(killed) is None


def test_a_killed_worker_is_found_just_after_redis_started(make_service, stage, killed, monkeypatch):
    """The name of its connection says that it was heard since."""
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 3)
    make_service().tick()
    assert stage.session(killed) is None


def test_a_closed_connection_is_not_trusted_just_after_an_outage(service, stage, clock, killed, monkeypatch):
    monkeypatch.setattr(service._stopped, "wait", lambda _: service.stop())
    monkeypatch.setattr(service._lookout, "look", unavailable)
    service.run()
    monkeypatch.undo()
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 86_400)
    go_on(service, clock, 9.9)
    assert stage.session(killed) is not None
    go_on(service, clock, 0.2)
    assert stage.session(killed) is None


def silent_client(stage):
    """An open job whose client was not heard of for longer than its lease."""
    job = stage.job(1, last=False)
    stage.age_field(stage.keys.job(job).record, "touched_ms", LEASE_S + 1)
    return job


def test_a_client_that_was_killed_leaves_no_open_job(service, stage):
    job = silent_client(stage)
    service.tick()
    assert stage.queries.job(job).state == "running"
    assert stage.pending(job) == [0]


def test_after_an_outage_clients_have_the_time_to_be_heard(service, stage, clock, monkeypatch):
    service.tick()
    monkeypatch.setattr(service._stopped, "wait", lambda _: service.stop())
    monkeypatch.setattr(service._lookout, "look", unavailable)
    service.run()
    monkeypatch.undo()
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: 86_400)
    job = silent_client(stage)
    go_on(service, clock, LEASE_S - 1, step_s=4.0)
    assert stage.queries.job(job).state == "open"
    go_on(service, clock, 2)
    assert stage.queries.job(job).state == "running"


def test_a_redis_that_was_restarted_has_heard_no_client(make_service, stage, clock, monkeypatch):
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: LEASE_S - 1)
    job, service = silent_client(stage), make_service()
    service.tick()
    assert stage.queries.job(job).state == "open"
    monkeypatch.setattr(stage.queries, "uptime_s", lambda: LEASE_S + 1)
    go_on(service, clock, LEASE_S + 1, step_s=4.0)
    assert stage.queries.job(job).state == "running"


def unavailable():
    raise BrokerUnavailableError("down")


def test_a_suspect_gets_no_new_work(service, stage):
    session, job = stage.worker(), stage.job(1)
    stage.age_beat(session, 4)
    assert service.tick() == 0
    assert stage.pending(job) == [0]
    stage.sessions.beat(session, NAME, heartbeat())
    assert service.tick() == 1


def test_what_came_while_no_worker_had_room_is_not_forgotten(make_service, stage):
    """A suspect that beats again changes no state, and wakes nobody."""
    service = make_service(detection_interval=60.0)
    session = stage.worker()
    service.tick()
    stage.age_beat(session, 4)
    job = stage.job(1)
    assert service.tick() == 0
    stage.sessions.beat(session, NAME, heartbeat())
    assert service.tick(changed=False) == 1
    assert stage.pending(job) == []


def test_a_worker_that_is_asked_to_drain_gets_no_new_work(service, stage):
    session, job = stage.worker(), stage.job(1)
    stage.sessions.request_drain(session)
    assert service.tick() == 0
    assert stage.pending(job) == [0]


def test_a_worker_of_another_model_gets_no_work(service, stage):
    stage.worker(model="other")
    job = stage.job(1, model="m")
    assert service.tick() == 0
    assert stage.pending(job) == [0]


def test_the_batch_settings_count(make_service, stage):
    session = stage.worker(slots=100, kv_tokens=100_000)
    stage.job(7)
    assert make_service(batch_size=3).tick() == 3
    assert sorted(batch.size for batch in stage.queries.batches(session)) == [1, 3, 3]


def test_a_small_job_behind_a_huge_one_is_in_the_next_batch(make_service, stage):
    service = make_service()
    session = stage.worker(slots=4, kv_tokens=100_000)
    huge = stage.job(500)
    service.tick()
    (batch,) = stage.queries.batches(session)
    small = stage.job(2)
    assert service.tick() == 0
    stage.ledger.claim(batch.id, huge, session)
    stage.commit(batch.id, huge, session, stage.queries.batch_indices(batch.id)[:2])
    service.tick()
    assert {stage.assigned(small)[index] for index in (0, 1)} < {item.id for item in stage.queries.batches(session)}


def test_a_higher_priority_goes_first(service, stage):
    stage.worker(slots=4)
    low, high = stage.job(5, priority=-10), stage.job(5, priority=10)
    service.tick()
    assert (len(stage.assigned(low)), len(stage.assigned(high))) == (0, 5)


def test_users_have_equal_shares(make_service, stage):
    stage.worker(slots=20, kv_tokens=100_000)
    jobs = [stage.job(200, user="many") for _ in range(3)] + [stage.job(200, user="one")]
    make_service(batch_size=1).tick()
    counts = [len(stage.assigned(job)) for job in jobs]
    assert abs(counts[3] - sum(counts[:3])) <= 1
    assert max(counts[:3]) - min(counts[:3]) <= 1


def test_a_user_may_have_a_larger_share(make_service, stage):
    stage.worker(slots=20, kv_tokens=100_000)
    jobs = [stage.job(200, user="a"), stage.job(200, user="b")]
    make_service(batch_size=1, user_weights="a=3").tick()
    assert [len(stage.assigned(job)) for job in jobs] == [6, 2]


def test_what_texts_become_is_learned_from_a_jobs_outputs(make_service, stage):
    """Each may write 10 tokens and writes 2: 4 of the prompt and 1.5 times 2 are expected."""
    service = make_service()
    session, job = stage.worker(slots=20), stage.job(60)
    service.tick()
    (batch,) = stage.queries.batches(session)
    assert batch.tokens == batch.size * COST
    stage.commit(batch.id, job, session, stage.queries.batch_indices(batch.id))
    stage.ledger.finish(batch.id, session)
    service.tick()
    (batch,) = stage.queries.batches(session)
    assert batch.tokens == batch.size * (4 + 3 + 1)
    assert stage.in_hand(session) == (batch.size, batch.tokens, 0)


def test_a_deadline_that_cannot_be_met_fails_at_once(service, stage):
    """A beat says that the worker gives 10 tokens in a second; the job's requests take 1,000 by experience."""
    session = stage.worker(slots=2)
    stage.age_beat(session, 1)
    service.tick()
    stage.sessions.beat(session, NAME, heartbeat(slots=2, running=1, generated_tokens=10))
    job = stage.job(40, deadline_s=20)
    stage.redis.hset(stage.keys.job(job).record, mapping={"done": 20, "completion_tokens": 20_000})
    service.tick()
    stage.redis.hset(stage.keys.job(job).record, mapping={"done": 20})
    service.tick()
    errors = [item.error for item in stage.results(job)]
    assert {error.code for error in errors} == {"deadline_exceeded"}
    assert all("cannot be met" in error.message for error in errors)


def test_a_cancelled_job_is_ended_and_not_run(service, stage):
    stage.worker()
    job = stage.job(2)
    stage.ledger.cancel(job)
    assert service.tick() == 0
    assert {item.error.code for item in stage.results(job)} == {"cancelled"}


def test_suspects_run_alone_on_their_worker(service, stage):
    session = stage.worker()
    job = stage.job(2)
    service.tick()
    (batch,) = stage.queries.batches(session)
    stage.ledger.claim(batch.id, job, session)
    stage.kill(session)
    service.tick()
    successor = stage.worker()
    other = stage.job(1)
    assert service.tick() == 1
    (batch,) = stage.queries.batches(successor)
    assert (batch.isolated, batch.size) == (True, 1)
    assert stage.pending(other) == [0]


def test_complete_jobs_are_closed_only_every_detection_interval(make_service, stage, clock):
    service = make_service(detection_interval=1.0)
    service.tick()
    job = stage.finished_job()
    stage.redis.zincrby(stage.keys.closing, -10_000, job)
    clock.advance(0.9)
    service.tick()
    assert len(stage.queries.closing_jobs()) == 1
    clock.advance(0.2)
    service.tick()
    assert stage.queries.closing_jobs() == []


def test_run_ticks_until_stopped_and_then_resigns(service, stage, in_background):
    running = in_background(service.run)
    session = stage.worker()
    stage.job(1)
    wait_until(lambda: stage.session(session).batches == 1)
    service.stop()
    running.result(60)
    assert not stage.store.has_leader()

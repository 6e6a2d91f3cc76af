import logging

import msgspec
import pytest

from broker import presence
from broker.records import BeatReply, Cause
from broker.states import WorkerState
from driver.detector import DetectorLimits
from driver.recovery import Recovery
from tests.support.clock import FakeClock
from tests.support.stage import heartbeat, output
from tests.support.waiting import wait_until

LIMITS = DetectorLimits(heartbeat_timeout=10.0, stall_timeout=60.0)
NAME = "gpu0@host"


@pytest.fixture
def recovery(store):
    return Recovery(store, LIMITS, FakeClock())


@pytest.fixture
def session(stage):
    return stage.worker(NAME)


def recover(stage, recovery, *, trust_silence=True, trust_absence=True):
    return recovery.recover(stage.sessions.table(), trust_silence=trust_silence, trust_absence=trust_absence)


def attempts(stage, job, index=0):
    return stage.queries.attempts(job, index)


def test_a_healthy_worker_is_left_alone(stage, recovery, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    assert recover(stage, recovery) == 0
    assert stage.assigned(job) == {0: batch, 1: batch}


def test_the_dead_are_released_and_forgotten(stage, recovery, session):
    job = stage.job(3)
    stage.batch(session, job, [0])
    stage.batch(session, job, [2])
    stage.kill(session)
    assert recover(stage, recovery) == 2
    assert stage.pending(job) == [0, 1, 2]
    assert stage.sessions.table() == []


@pytest.mark.parametrize(
    ("cause", "blamed"), [(Cause.CRASHED, 1), (Cause.HUNG, 1), (Cause.LOST, 0), (Cause.STOPPED, 0)]
)
def test_only_a_crash_or_a_hang_can_be_a_requests_fault(stage, recovery, session, cause, blamed):
    job = stage.job(1)
    stage.batch(session, job, [0])
    stage.kill(session, cause)
    assert recover(stage, recovery) == 1
    assert attempts(stage, job) == blamed


def test_what_was_never_claimed_is_not_blamed(stage, recovery, session):
    job = stage.job(1)
    stage.batch(session, job, [0], claimed=False)
    stage.kill(session)
    recover(stage, recovery)
    assert attempts(stage, job) == 0


def test_a_silent_worker_is_declared_lost(stage, recovery, session):
    job = stage.job(1)
    stage.batch(session, job, [0])
    stage.age_beat(session, 11)
    assert recover(stage, recovery) == 1
    assert attempts(stage, job) == 0
    assert stage.sessions.beat(session, NAME, heartbeat()).reply is BeatReply.FENCED


def test_silence_shorter_than_the_timeout_is_borne(stage, recovery, session):
    stage.batch(session, stage.job(1), [0])
    stage.age_beat(session, 9)
    assert recover(stage, recovery) == 0


def test_silence_is_borne_while_it_proves_nothing(stage, recovery, session):
    stage.batch(session, stage.job(1), [0])
    stage.age_beat(session, 1000)
    assert recover(stage, recovery, trust_silence=False) == 0
    assert stage.session(session).state == "ready"


def test_a_reported_death_counts_whether_silence_does_or_not(stage, recovery, session):
    stage.batch(session, stage.job(1), [0])
    stage.kill(session)
    assert recover(stage, recovery, trust_silence=False) == 1


def test_a_beat_after_the_look_saves_the_worker(stage, recovery, session):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    stage.age_beat(session, 11)
    table = stage.sessions.table()
    stage.sessions.beat(session, NAME, heartbeat())
    assert recovery.recover(table, trust_silence=True, trust_absence=True) == 0
    assert stage.assigned(job) == {0: batch}


# Presence


@pytest.fixture
def other(stage):
    """Another worker, which beats."""
    return stage.worker("gpu1@host")


@pytest.fixture
def pulse(store, session, other):
    """The session's beats as a worker sends them; one has come."""
    pulse = store.pulse(session, NAME)
    pulse.beat(heartbeat())
    yield pulse
    pulse.close()


def test_a_killed_worker_is_found_by_its_closed_connection(stage, recovery, session, pulse, caplog):
    job = stage.job(1)
    stage.batch(session, job, [0])
    pulse.close()
    stage.age_beat(session, 3.3)
    with caplog.at_level(logging.WARNING):
        assert until_closed(stage, recovery, trust_silence=False) == 1
    assert f"{NAME} is lost: its connection is closed and no heartbeat for 3.3 s" in caplog.text
    assert stage.pending(job) == [0]
    assert attempts(stage, job) == 0
    assert stage.sessions.beat(session, NAME, heartbeat()).reply is BeatReply.FENCED


def test_a_worker_whose_supervisor_is_there_is_left_to_it(stage, recovery, session, pulse):
    """It lives and is busy, or its process is about to end: the supervisor will know, and whose fault it was."""
    record = stage.keys.session(session).record
    stage.batch(session, stage.job(1), [0])
    stage.redis.hset(record, "instance", "i")
    pulse.close()
    stage.age_beat(session, 9)
    assert stage.sessions.watch(session, "i") == "ready"
    assert until_closed(stage, recovery) == 0
    assert stage.session(session).state == "ready"
    stage.age_field(record, "watched_ms", 4)
    assert recover(stage, Recovery(stage.store, LIMITS, FakeClock())) == 1


def test_where_nobody_beats_the_closed_connections_say_nothing_until_all_could_come_back(stage, store, session, other):
    """A proxy was started anew: it has cut off all of them, and not everybody is back at the same time."""
    clock = FakeClock()
    recovery = Recovery(store, LIMITS, clock)
    pulse = store.pulse(session, NAME)
    pulse.beat(heartbeat())
    stage.batch(session, stage.job(1), [0])
    pulse.close()
    for row in (session, other):
        stage.age_beat(row, 4)
    assert until_closed(stage, recovery) == 0
    stage.sessions.beat(other, "gpu1@host", heartbeat())
    clock.advance(LIMITS.presence_counts_after - 0.1)
    assert recover(stage, recovery) == 0
    clock.advance(0.2)
    assert recover(stage, recovery) == 1


def until_closed(stage, recovery, **trust):
    """Recover once Redis has seen the connection's end, which it is told beside the other connections' commands."""
    row = stage.sessions.table()[0]
    number = row.connection.rpartition(":")[2]
    wait_until(lambda: not stage.redis.client_list(client_id=[number]), what="the end of the connection")
    return recover(stage, recovery, **trust)


def test_who_is_silent_and_connected_is_borne(stage, recovery, session, pulse):
    """It is frozen, or busy."""
    stage.batch(session, stage.job(1), [0])
    stage.age_beat(session, 9)
    assert recover(stage, recovery) == 0
    assert stage.session(session).state == "ready"


def test_who_beats_by_another_connection_is_not_dead(stage, recovery, session, pulse):
    pulse.close()
    assert until_closed(stage, recovery) == 0
    assert stage.session(session).state == "ready"


def test_a_connection_that_nobody_named_says_nothing(stage, recovery, session):
    stage.batch(session, stage.job(1), [0])
    stage.age_beat(session, 9)
    assert recover(stage, recovery) == 0


def test_a_connection_of_another_run_of_redis_says_nothing(stage, recovery, session, pulse):
    """All numbers are others' after a restart, and after a failover."""
    record = stage.keys.session(session).record
    number = stage.session(session).connection.rpartition(":")[2]
    stage.redis.hset(record, "connection", f"another:{number}")
    pulse.close()
    stage.age_beat(session, 9)
    assert until_closed(stage, recovery) == 0
    assert stage.session(session).state == "ready"


def test_after_an_outage_a_closed_connection_says_nothing(stage, recovery, session, pulse):
    stage.batch(session, stage.job(1), [0])
    pulse.close()
    stage.age_beat(session, 9)
    assert until_closed(stage, recovery, trust_absence=False) == 0
    assert stage.session(session).state == "ready"


def test_a_beat_after_the_look_saves_who_has_a_new_connection(stage, recovery, session, pulse):
    job = stage.job(1)
    batch = stage.batch(session, job, [0])
    pulse.close()
    stage.age_beat(session, 4)
    table = stage.sessions.table()
    pulse.beat(heartbeat())
    assert recovery.recover(table, trust_silence=True, trust_absence=True) == 0
    assert stage.assigned(job) == {0: batch}


def test_while_all_beat_nothing_is_asked(stage, recovery, session, pulse, monkeypatch):
    monkeypatch.setattr(presence, "_ask", lambda *_: pytest.fail("asked"))
    stage.kill(stage.worker("gpu2@host"))
    assert recover(stage, recovery) == 0
    stage.age_beat(session, 4)
    with pytest.raises(pytest.fail.Exception):
        recover(stage, recovery)


def hang(stage, session):
    stage.sessions.beat(session, NAME, heartbeat(running=1))
    stage.age_field(stage.keys.session(session).record, "progress_ms", 61)
    stage.sessions.beat(session, NAME, heartbeat(running=1))


def test_a_worker_without_progress_is_fenced_as_hung(stage, recovery, session, caplog):
    job = stage.job(1)
    stage.batch(session, job, [0])
    hang(stage, session)
    with caplog.at_level(logging.WARNING):
        assert recover(stage, recovery, trust_silence=False) == 1
    assert attempts(stage, job) == 1
    assert "no engine step for 61 s" in caplog.text
    assert stage.sessions.beat(session, NAME, heartbeat()).reply is BeatReply.FENCED


def test_a_step_after_the_look_saves_a_hanging_worker(stage, recovery, session):
    stage.batch(session, stage.job(1), [0])
    hang(stage, session)
    table = [msgspec.structs.replace(row, beat_ms=row.beat_ms - 1) for row in stage.sessions.table()]
    assert recovery.recover(table, trust_silence=True, trust_absence=True) == 0
    assert stage.session(session).state == "ready"


def test_outputs_that_were_committed_stay(stage, recovery, session):
    job = stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    stage.commit(batch, job, session, [0], "kept")
    stage.kill(session)
    assert recover(stage, recovery) == 1
    assert stage.pending(job) == [1]
    assert stage.results(job) == [output(0, "kept")]


def test_recovering_twice_counts_once(stage, recovery, session):
    job = stage.job(1)
    stage.batch(session, job, [0])
    stage.kill(session)
    table = stage.sessions.table()
    assert recovery.recover(table, trust_silence=True, trust_absence=True) == 1
    assert recovery.recover(table, trust_silence=True, trust_absence=True) == 0
    assert attempts(stage, job) == 1


def test_a_recovery_that_stopped_half_way_is_finished(stage, recovery, session):
    job = stage.job(2)
    first = stage.batch(session, job, [0])
    stage.batch(session, job, [1])
    stage.kill(session)
    stage.ledger.release(first, job, session, count_attempt=True)
    assert recover(stage, recovery) == 1
    assert [attempts(stage, job, index) for index in (0, 1)] == [1, 1]
    assert stage.sessions.table() == []


def test_the_dead_of_one_name_leave_its_next_session_alone(stage, recovery, session):
    job = stage.job(2)
    stage.batch(session, job, [0])
    stage.kill(session)
    successor = stage.worker(NAME)
    batch = stage.batch(successor, job, [1])
    assert recover(stage, recovery) == 1
    assert stage.assigned(job) == {1: batch}
    assert [row.id for row in stage.sessions.table()] == [successor]


# Quarantine


def die(stage, recovery, job, indices, *, isolated, cause=Cause.CRASHED):
    """A fresh worker dies with these requests."""
    session = stage.worker(NAME)
    stage.batch(session, job, indices, isolated=isolated)
    stage.kill(session, cause)
    return recover(stage, recovery)


def test_a_request_that_died_alone_on_its_last_attempt_is_given_up(stage, recovery):
    job = stage.job(1)
    for _ in range(2):
        assert die(stage, recovery, job, [0], isolated=True) == 1
    assert die(stage, recovery, job, [0], isolated=True) == 0
    (result,) = stage.results(job)
    assert (result.error.code, result.worker_id) == ("worker_crash", NAME)
    assert "died 3 times" in result.error.message
    assert stage.queries.job(job).state == "done"
    (entry,) = stage.queries.quarantined()
    assert (entry.job_id, entry.index, entry.reason) == (job, 0, result.error.message)


def test_a_request_with_attempts_left_is_not(stage, recovery):
    job = stage.job(1)
    assert die(stage, recovery, job, [0], isolated=True) == 1
    assert die(stage, recovery, job, [0], isolated=True) == 1
    assert stage.queries.quarantined() == []
    assert stage.pending(job) == [0]


def test_in_company_nobody_is_given_up_however_often(stage, recovery):
    job = stage.job(2)
    for _ in range(5):
        assert die(stage, recovery, job, [0, 1], isolated=True) == 2
    assert stage.queries.quarantined() == []


def test_alone_in_its_batch_but_not_on_its_worker_nobody_is_given_up(stage, recovery):
    job = stage.job(1)
    for _ in range(5):
        assert die(stage, recovery, job, [0], isolated=False) == 1
    assert stage.queries.quarantined() == []


def test_losses_are_nobodys_fault_until_they_are_many(stage, recovery):
    job = stage.job(1)
    for losses in range(1, 6):
        assert die(stage, recovery, job, [0], isolated=True, cause=Cause.LOST) == 1
        assert attempts(stage, job) == max(0, losses - 3)
    assert stage.queries.quarantined() == []
    assert die(stage, recovery, job, [0], isolated=True, cause=Cause.LOST) == 0
    (result,) = stage.results(job)
    assert result.error.code == "worker_crash"
    assert "its worker died 6 times while running it, the last time alone" in result.error.message
    assert [entry.index for entry in stage.queries.quarantined()] == [0]


def test_a_loss_alone_gives_nobody_up_while_losses_are_forgiven(stage, recovery):
    job = stage.job(1)
    for _ in range(2):
        assert die(stage, recovery, job, [0], isolated=False) == 1
    assert attempts(stage, job) == 2
    for _ in range(3):
        assert die(stage, recovery, job, [0], isolated=True, cause=Cause.LOST) == 1
    assert attempts(stage, job) == 2


def test_losses_in_company_give_nobody_up_however_many(stage, recovery):
    job = stage.job(2)
    for _ in range(9):
        assert die(stage, recovery, job, [0, 1], isolated=True, cause=Cause.LOST) == 2
    assert stage.queries.quarantined() == []


def test_workers_that_are_stopped_count_no_loss(stage, recovery):
    job = stage.job(1)
    for _ in range(5):
        assert die(stage, recovery, job, [0], isolated=True, cause=Cause.STOPPED) == 1
    assert (attempts(stage, job), stage.queries.losses(job, 0)) == (0, 0)


@pytest.mark.parametrize("asked", [False, True])
def test_a_machine_that_goes_while_its_worker_drains_counts_no_loss(stage, recovery, asked):
    """A spot machine gives notice, and is then gone with what did not end in time."""
    job = stage.job(1)
    session = stage.worker(NAME)
    stage.batch(session, job, [0])
    if asked:
        stage.sessions.request_drain(session)
    else:
        stage.sessions.beat(session, NAME, heartbeat(state=WorkerState.DRAINING))
    stage.age_beat(session, 11)
    assert recover(stage, recovery) == 1
    assert (attempts(stage, job), stage.queries.losses(job, 0)) == (0, 0)


def test_a_recovery_from_a_loss_that_is_repeated_counts_once(stage, recovery, session):
    job = stage.job(1)
    stage.batch(session, job, [0])
    stage.kill(session, Cause.LOST)
    table = stage.sessions.table()
    for _ in range(2):
        recovery.recover(table, trust_silence=True, trust_absence=True)
    assert stage.queries.losses(job, 0) == 1


def test_the_rest_of_the_job_goes_on(stage, recovery):
    job = stage.job(3)
    for _ in range(3):
        die(stage, recovery, job, [1], isolated=True)
    assert stage.pending(job) == [0, 2]
    assert stage.commit("", job, "", [0, 2]).job_done
    assert stage.queries.job(job).failed == 1


def test_the_last_one_left_of_a_batch_was_alone_at_the_end(stage, recovery):
    """Its neighbours had their outputs before the worker died; what was left when it died is the culprit."""
    job = stage.job(2)
    for _ in range(2):
        die(stage, recovery, job, [1], isolated=True)
    session = stage.worker(NAME)
    batch = stage.batch(session, job, [0, 1], isolated=True)
    stage.commit(batch, job, session, [0])
    stage.kill(session)
    assert recover(stage, recovery) == 0
    assert [item.index for item in stage.queries.quarantined()] == [1]


def test_a_quarantine_that_stopped_half_way_is_finished(stage, recovery):
    """The entry is kept, then the driver dies before the output is committed."""
    job = stage.job(1)
    for _ in range(2):
        die(stage, recovery, job, [0], isolated=True)
    session = stage.worker(NAME)
    stage.batch(session, job, [0], isolated=True)
    stage.kill(session)
    table = stage.sessions.table()
    recovery.recover(table, trust_silence=True, trust_absence=True)
    recovery.recover(table, trust_silence=True, trust_absence=True)
    assert len(stage.queries.quarantined()) == 1
    assert len(stage.results(job)) == 1

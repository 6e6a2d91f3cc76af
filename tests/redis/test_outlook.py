import pytest

from broker import outlook
from tests.support.stage import LEADER


@pytest.fixture
def lookout(stage):
    return stage.store.lookout(stage.store.waiting())


def test_it_says_who_leads_and_what_time_it_is(stage, lookout):
    before_ms = stage.queries.server_time_ms()
    look = lookout.look()
    assert look.leader == LEADER
    assert before_ms <= look.now_ms <= stage.queries.server_time_ms()
    stage.redis.delete(stage.keys.leader)
    assert lookout.look().leader == ""


def test_it_sees_the_heartbeat_table(stage, lookout):
    """Those that it saw before, too, and only those that are there still."""
    assert lookout.look().sessions == []
    old = stage.worker("gpu1@host")
    seen = [lookout.look().sessions]
    job = stage.job(2)
    stage.batch(old, job, [0, 1])
    new = stage.worker("gpu0@host")
    seen.append(lookout.look().sessions)
    assert [[row.id for row in rows] for rows in seen] == [[old], [new, old]]
    assert [(row.batches, row.inhand_requests) for row in seen[1]] == [(0, 0), (1, 2)]
    stage.kill(new)
    table = stage.sessions.table()
    assert lookout.look().sessions[0].state == table[0].state == "dead"
    stage.sessions.forget(table[0])
    assert [row.id for row in lookout.look().sessions] == [old]


def test_a_steady_table_takes_one_round_trip(stage, lookout, monkeypatch):
    stage.worker()
    stage.job(1)
    lookout.look()
    executions = []
    pipeline = stage.redis.pipeline

    def counting(**options):
        made = pipeline(**options)
        execute = made.execute
        made.execute = lambda: executions.append(len(made.command_stack)) or execute()
        return made

    monkeypatch.setattr(stage.redis, "pipeline", counting)
    lookout.look()
    assert executions == [9]


def test_it_sees_a_beat_at_once(stage, lookout):
    session = stage.worker()
    stage.age_beat(session, 5)
    assert [round(row.beat_age_s) for row in lookout.look().sessions] == [5]


@pytest.mark.parametrize("page", [1, 2, 64])
def test_it_sees_what_must_not_run(stage, lookout, monkeypatch, page):
    monkeypatch.setattr(outlook, "STOPPING_PAGE", page)
    cancelled = [stage.job(1) for _ in range(2)]
    for job in cancelled:
        stage.ledger.cancel(job)
    stage.job(1, deadline_s=60)
    over = stage.job(1, deadline_s=60)
    stage.redis.zincrby(stage.keys.stopping, -61_000, over)
    assert lookout.look().stopping == {*cancelled, over}


def test_it_sees_each_change_of_what_waits_once(stage, lookout):
    first = stage.job(1)
    assert [job.id for job in lookout.look().changes.joined] == [first]
    second = stage.job(1)
    stage.commit("", first, "", [0])
    look = lookout.look()
    assert ([job.id for job in look.changes.joined], look.changes.left) == ([second], {first})
    look = lookout.look()
    assert (look.changes.joined, look.changes.left) == ((), frozenset())


def test_it_takes_the_wake_up_for_what_it_sees(stage, lookout):
    stage.job(1)
    lookout.look()
    assert not stage.wakes()

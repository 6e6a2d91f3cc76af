import pytest
from typer.testing import CliRunner

from broker import ledger
from broker.connection import SOCKET_TIMEOUT_S
from broker.records import QuarantinedRequest
from driver.cli.app import app
from driver.client import Client
from tests.support.racing import race
from tests.support.stage import request


def entry(index, job_id="job", reason="died"):
    return QuarantinedRequest(job_id=job_id, index=index, model="m", request=request(), reason=reason, at_ms=1)


def kept(stage):
    return [(item.job_id, item.index) for item in stage.queries.quarantined()]


def test_an_entry_is_kept_whole(stage):
    stage.ledger.quarantine(entry(3))
    assert stage.queries.quarantined() == [entry(3)]


def test_the_oldest_comes_first(stage):
    for index in (2, 0, 1):
        stage.ledger.quarantine(entry(index))
        stage.age_quarantine(10)
    assert kept(stage) == [("job", 2), ("job", 0), ("job", 1)]


def test_the_same_request_twice_is_kept_once(stage):
    stage.ledger.quarantine(entry(0, reason="first"))
    stage.ledger.quarantine(entry(0, reason="second"))
    assert [item.reason for item in stage.queries.quarantined()] == ["second"]


def test_old_entries_go(stage):
    stage.ledger.quarantine(entry(0))
    stage.age_quarantine(ledger.QUARANTINE_TTL_MS / 1000 + 1)
    stage.ledger.quarantine(entry(1))
    assert kept(stage) == [("job", 1)]
    assert stage.redis.hlen(stage.keys.quarantine) == 1


def test_the_oldest_beyond_the_limit_go(stage, monkeypatch):
    monkeypatch.setattr(ledger, "QUARANTINE_LIMIT", 3)
    for index in range(5):
        stage.ledger.quarantine(entry(index))
        stage.age_quarantine(10)
    assert kept(stage) == [("job", 2), ("job", 3), ("job", 4)]
    assert stage.redis.hlen(stage.keys.quarantine) == 3


def test_old_and_surplus_entries_go_together(stage, monkeypatch):
    monkeypatch.setattr(ledger, "QUARANTINE_LIMIT", 2)
    stage.ledger.quarantine(entry(0))
    stage.age_quarantine(ledger.QUARANTINE_TTL_MS / 1000 + 1)
    for index in (1, 2):
        stage.redis.hset(stage.keys.quarantine, f"job/{index}", b"x")
        stage.redis.zadd(stage.keys.quarantine_times, {f"job/{index}": stage.queries.server_time_ms() - 10 + index})
    stage.ledger.quarantine(entry(3))
    assert stage.redis.zrange(stage.keys.quarantine_times, 0, -1) == [b"job/2", b"job/3"]
    assert sorted(stage.redis.hkeys(stage.keys.quarantine)) == [b"job/2", b"job/3"]
    stage.redis.delete(stage.keys.quarantine, stage.keys.quarantine_times)


def test_the_whole_quarantine_has_an_end(stage):
    stage.ledger.quarantine(entry(0))
    limit = ledger.QUARANTINE_TTL_MS
    for key in (stage.keys.quarantine, stage.keys.quarantine_times):
        assert 0 < stage.redis.pttl(key) <= limit


def test_many_at_once_are_all_kept(stage):
    race(*(lambda index=index: stage.ledger.quarantine(entry(index)) for index in range(8)))
    assert sorted(kept(stage)) == [("job", index) for index in range(8)]


@pytest.fixture
def stage(stage):
    def age(seconds):
        for name in stage.redis.zrange(stage.keys.quarantine_times, 0, -1):
            stage.redis.zincrby(stage.keys.quarantine_times, -int(seconds * 1000), name)

    stage.age_quarantine = age
    return stage


def test_one_is_tried_again_without_haste(stage, settings, monkeypatch):
    """An answer that is only late must not look like a failure: the request would be submitted twice."""
    stage.ledger.quarantine(entry(0))
    waits_s = []
    submit = Client.submit

    def noted(client, *args, **options):
        waits_s.append(client.store.redis.connection_pool.connection_kwargs["socket_timeout"])
        return submit(client, *args, **options)

    monkeypatch.setattr(Client, "submit", noted)
    place = {"STOKER_BROKER_URL": settings.broker_url, "STOKER_NAMESPACE": settings.namespace}
    run = CliRunner().invoke(app, ["quarantine", "retry", "job/0"], env=place)
    assert waits_s == [SOCKET_TIMEOUT_S]
    assert [f"submitted as job {job.id}" for job in stage.queries.open_jobs()] == run.output.split("\n")[:-1]

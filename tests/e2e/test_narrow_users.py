"""Redis users that may do no more than docs/protocol.md says, and everything works."""

import signal
from pathlib import Path

import pytest
from celery.result import AsyncResult
from redis import Redis
from redis.exceptions import NoPermissionError

from broker.celery_app import create_app
from broker.settings import BrokerSettings
from driver import Client
from tests.support.cluster import Cluster
from tests.support.verdict import requests

RULES = [
    line.split()
    for line in (Path(__file__).parents[2] / "docs/protocol.md").read_text("utf-8").splitlines()
    if line.startswith("ACL SETUSER ")
]


class NarrowCluster(Cluster):
    """Its processes come to the server as a user of the page; its own client may do everything."""

    user = ""

    @property
    def url(self):
        return f"redis://{self.user}127.0.0.1:{self.port}/0"


@pytest.fixture
def cluster(tmp_path):
    cluster = NarrowCluster(tmp_path)
    for rule in RULES:
        cluster.redis.execute_command(*rule)
    cluster.user = "stoker:PASSWORD@"
    yield cluster
    cluster.stop()


@pytest.fixture
def client(cluster):
    """A client that is the page's user for clients."""
    with Client(f"redis://stoker-client:PASSWORD@127.0.0.1:{cluster.port}/0") as client:
        yield client


def refused(server: Redis) -> list[tuple[str, ...]]:
    """What users were refused so far."""
    names = ("username", "reason", "context", "object")
    return [tuple(entry[name] for name in names) for entry in server.acl_log()]


def test_all_that_is_needed_is_allowed(cluster, client):
    cluster.start_driver()
    for name in "ab":
        cluster.start_worker(name)
    cluster.ready()
    client.store.check()

    assert len(list(client.run([f"p {place}" for place in range(20)]))) == 20
    assert list(client.submit(["x"], stream=True, priority="high").stream(60))
    cancelled = client.submit(["x"] * 3)
    cancelled.cancel()
    assert len(cancelled.get(60)) == 3
    job = client.submit(requests(30, tokens=400))
    name = cluster.busy_one()
    cluster.workers[name].send_both(signal.SIGKILL)
    assert len(job.get(60)) == 30
    with create_app(BrokerSettings(broker_url=cluster.url)) as app:
        assert len(AsyncResult(job.id, app=app).get(timeout=60)) == 30
    left = cluster.workers[cluster.other(name)]
    for arguments in (("ctl", "all", "memory"), ("scale", "1"), ("drain", left.name)):
        run = cluster.stoker(*arguments)
        assert run.returncode == 0, run.stderr
    assert refused(cluster.redis) == []


def test_a_client_may_not_touch_more_than_the_ledger(cluster, client):
    cluster.redis.set("elsewhere", 1)
    for command in (("GET", "elsewhere"), ("DEL", "gpu.a"), ("FLUSHALL",), ("CONFIG", "GET", "dir"), ("KEYS", "*")):
        with pytest.raises(NoPermissionError):
            client.store.redis.execute_command(*command)
    cluster.redis.delete("elsewhere")

"""A real server for every Lua command: Valkey always, Redis too where `redis-server` is installed."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from broker.celery_app import create_app
from broker.embedded import EmbeddedServer
from broker.settings import BrokerSettings
from broker.store import Store
from tests.support.leaks import leaked_keys
from tests.support.stage import Stage

SERVERS = ("valkey", "redis") if shutil.which("redis-server") else ("valkey",)


@pytest.fixture(scope="session", params=SERVERS)
def server(request):
    instance = EmbeddedServer(fsync="no")
    if request.param == "redis":
        with mock.patch("broker.embedded.find_binary", return_value=shutil.which("redis-server")):
            instance.start()
    else:
        instance.start()
    yield instance
    instance.stop()


@pytest.fixture
def settings(server):
    return BrokerSettings(broker_url=server.url, namespace="test")


@pytest.fixture
def store(settings):
    """An empty store. After the test, no key is left that nothing will ever remove."""
    store = Store(settings)
    store.redis.flushall()
    yield store
    leaked = leaked_keys(store)
    store.close()
    assert not leaked


@pytest.fixture
def stage(store):
    return Stage(store)


@pytest.fixture
def app(settings):
    """The Celery app of a driver."""
    app = create_app(settings)
    yield app
    app.close()


@pytest.fixture
def in_background():
    """Runs a call in a thread; returns its future."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit

"""What Redis itself refuses: for now, which is waited out like an outage, or for good, which is said at once."""

import pytest

from broker.errors import BrokerRefusedError, BrokerUnavailableError
from broker.messages import Request, SamplingParams
from broker.patience import Patience
from broker.store import Store

REQUEST = Request(params=SamplingParams(), prompt="Hello")


def submit(store, job_id="job"):
    return store.ledger.submit(job_id, "", [REQUEST], offset=0, last=True)


@pytest.fixture
def full(store):
    """A Redis without memory for more, until it is called."""
    store.redis.config_set("maxmemory", 1)
    yield lambda: store.redis.config_set("maxmemory", 0)
    store.redis.config_set("maxmemory", 0)


@pytest.fixture
def reader(store, settings):
    """A store whose user may only read."""
    store.redis.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@read", "+@connection"])
    limited = Store(type(settings)(broker_url=settings.broker_url.replace("//", "//reader:pw@"), namespace="test"))
    yield limited
    limited.close()
    store.redis.acl_deluser("reader")


def test_a_full_redis_is_an_outage_that_ends(store, full):
    with pytest.raises(BrokerUnavailableError, match=r"cannot serve now: .*maxmemory"):
        submit(store)
    full()

    assert Patience(limit_s=5)(lambda: submit(store)) == 1


def test_a_missing_right_is_said_at_once(reader):
    with pytest.raises(BrokerRefusedError, match=r"refuses a command: .*permission"):
        Patience()(lambda: submit(reader))


def test_a_key_of_another_type_is_said_at_once(store):
    store.redis.set(store.keys.job("job").record, "not ours")

    with pytest.raises(BrokerRefusedError, match="WRONGTYPE"):
        Patience()(lambda: store.queries.job("job"))
    store.redis.delete(store.keys.job("job").record)

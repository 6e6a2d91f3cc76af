import pytest

from broker.connection import connect
from broker.errors import ConfigurationError
from broker.settings import BrokerSettings


@pytest.mark.parametrize("option", ["foo=1", "socket_timeout=soon", "db=x"])
def test_an_option_of_the_url_that_cannot_be_is_refused_by_name(option):
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]):
        connect(BrokerSettings(broker_url=f"redis://:secret@host/0?{option}"))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("ssl_cert_reqs=CERT_REQUIRED", "must be one of none, optional, required"),
        ("ssl_ca_certs=/nowhere", "/nowhere: there is no such file"),
        ("ssl_foo=1", "ssl_foo"),
    ],
)
def test_an_option_of_tls_that_cannot_be_is_refused_in_words(option, words):
    with pytest.raises(ConfigurationError, match=words):
        connect(BrokerSettings(broker_url=f"rediss://:secret@host/0?{option}"))


def test_an_option_of_tls_without_tls_is_refused_in_words():
    with pytest.raises(ConfigurationError, match="ssl_ca_certs is for TLS: the URL must start with rediss://"):
        connect(BrokerSettings(broker_url="redis://host/0?ssl_ca_certs=/nowhere"))


def test_an_option_that_redis_py_knows_is_taken():
    client = connect(BrokerSettings(broker_url="rediss://host/0?ssl_cert_reqs=none"))
    assert client.connection_pool.connection_kwargs["ssl_cert_reqs"] == "none"
    client.close()

import pytest

from broker.celery_app import create_app
from broker.errors import ConfigurationError
from broker.settings import BrokerSettings


@pytest.mark.parametrize("option", ["socket_timeout", "db", "password", "ssl_cert_reqs"])
def test_an_option_of_the_url_that_only_redis_py_takes_is_refused_by_name(option):
    with pytest.raises(ConfigurationError, match=option) as caught:
        create_app(BrokerSettings(broker_url=f"redis://:secret@host/0?{option}=secret"))
    assert "broker_url='redis://:***@host/0?" in str(caught.value)


def test_those_of_tls_are_taken():
    with create_app(BrokerSettings(broker_url="rediss://host/0?ssl_cert_reqs=none")) as app:
        assert app.connection().ssl

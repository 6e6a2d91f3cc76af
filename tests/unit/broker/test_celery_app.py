import pytest
from redis import SSLConnection

from broker.celery_app import create_app
from broker.connection import connect
from broker.errors import ConfigurationError
from broker.settings import BrokerSettings


@pytest.mark.parametrize("option", ["socket_timeout", "db", "password", "ssl_cert_reqs"])
def test_an_option_of_the_url_that_only_redis_py_takes_is_refused_by_name(option):
    with pytest.raises(ConfigurationError, match=option) as caught:
        create_app(BrokerSettings(broker_url=f"redis://:secret@host/0?{option}=secret"))
    assert "broker_url='redis://:***@host/0?" in str(caught.value)


TLS_OPTIONS = (
    "",
    "?ssl_cert_reqs=none",
    "?ssl_ca_certs={file}&ssl_cert_reqs=optional",
    "?ssl_ca_certs={file}&ssl_certfile={file}&ssl_keyfile={file}&ssl_check_hostname=false&ssl_min_version=771",
)


def security(options):
    """What a connection with these options insists on."""
    made = SSLConnection(**{name: value for name, value in options.items() if name.startswith("ssl_")})
    names = ("cert_reqs", "check_hostname", "ca_certs", "certfile", "keyfile", "ssl_min_version")
    return {name: getattr(made, name) for name in names}


@pytest.mark.parametrize("options", TLS_OPTIONS)
def test_celery_s_broker_and_results_are_as_sure_of_the_server_as_redis_py(options, tmp_path):
    file = tmp_path / "a file.pem"
    file.write_text("")
    url = "rediss://me:secret@host:7/3" + options.format(file=str(file).replace(" ", "%20"))
    with create_app(BrokerSettings(broker_url=url)) as app:
        own = security(connect(BrokerSettings(broker_url=url)).connection_pool.connection_kwargs)
        broker, results = app.connection(), app.backend.connparams
        assert security(broker.ssl) == security(results) == own
        assert issubclass(results["connection_class"], SSLConnection)
        assert (broker.userid, broker.password, broker.hostname, broker.port, broker.virtual_host) == (
            *(results[name] for name in ("username", "password", "host", "port")),
            str(results["db"]),
        )
        assert broker.as_uri(include_password=True) == "rediss://me:secret@host:7/3"


def test_without_tls_there_are_no_options_of_it():
    with create_app(BrokerSettings(broker_url="redis://host/3")) as app:
        assert not app.connection().ssl
        assert "connection_class" not in app.backend.connparams

import pytest

from broker.errors import ConfigurationError
from broker.settings import BrokerSettings, load_broker_settings, mask_url


def test_the_defaults_work():
    settings = BrokerSettings()
    assert settings.broker_url == "redis://127.0.0.1:6397/0"
    assert (settings.heartbeat_interval, settings.heartbeat_timeout, settings.max_attempts) == (1.0, 10.0, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker_url", "http://host"),
        ("broker_url", ""),
        ("heartbeat_interval", 0),
        ("heartbeat_interval", -1),
        ("heartbeat_timeout", 1.9),
        ("result_ttl_s", 59),
        ("visibility_timeout_s", 59),
        ("max_attempts", 0),
        ("namespace", ""),
        ("namespace", "two words"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        BrokerSettings(**{name: value})


def test_all_problems_come_in_one_error():
    with pytest.raises(ConfigurationError) as caught:
        BrokerSettings(broker_url="http://host", max_attempts=0, result_ttl_s=1)
    assert all(name in str(caught.value) for name in ("broker_url", "max_attempts", "result_ttl_s"))


def test_the_environment_is_read_and_keywords_win():
    environ = {"STOKER_BROKER_URL": "redis://one:1/0", "STOKER_MAX_ATTEMPTS": "7"}
    settings = load_broker_settings(environ, broker_url="rediss://two:2/0")
    assert (settings.broker_url, settings.max_attempts) == ("rediss://two:2/0", 7)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("rediss://me:secret@host/2?x=1", "rediss://me:***@host/2?x=1"),
        ("redis://me@host:1", "redis://me@host:1"),
        ("redis://:secret@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url, masked):
    assert mask_url(url) == masked


def test_a_password_is_not_in_the_error_either():
    with pytest.raises(ConfigurationError) as caught:
        BrokerSettings(broker_url="http://:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://h:99999/0", "port out of range"),
        ("redis://h:0/0", "port 0"),
        ("redis://:abc", "the port is not a number"),
        ("redis://[::1", "invalid IPv6 URL"),
    ],
)
def test_a_url_that_is_none_is_refused_in_words(url, reason):
    with pytest.raises(ConfigurationError, match=f"broker_url='.*': no valid URL: {reason}"):
        BrokerSettings(broker_url=url)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host/0?password=secret", "redis://host/0?password=***"),
        ("redis://host/0?db=1&password=secret&protocol=2", "redis://host/0?db=1&password=***&protocol=2"),
        ("redis://me:secret@host?ssl_password=secret#x", "redis://me:***@host?ssl_password=***#x"),
        ("redis://:sec/ret@host:1/0", "redis://:***@host:1/0"),
        ("redis://:secret@[::1", "redis://:***@[::1"),
        ("redis://host/0?name=a@b", "redis://host/0?name=a@b"),
    ],
)
def test_a_password_is_masked_wherever_it_stands(url, masked):
    assert mask_url(url) == masked


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("name", ["heartbeat_interval", "heartbeat_timeout"])
def test_a_time_that_never_comes_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=f"{name}={value} must be finite"):
        BrokerSettings(**{name: float(value)})


def test_a_url_of_another_type_is_refused_and_not_shown():
    with pytest.raises(ConfigurationError, match="broker_url: expected `str`, got `bytes`") as caught:
        BrokerSettings(broker_url=b"redis://:secret@host/0")
    assert "secret" not in str(caught.value)


def test_a_kind_of_float_is_a_float():
    """As numpy's float64 is."""
    seconds = type("Seconds", (float,), {})
    assert BrokerSettings(heartbeat_interval=seconds(2)).heartbeat_interval == 2


@pytest.mark.parametrize("path", ["", "/", "/0", "/15", "/0?ssl_cert_reqs=none"])
def test_a_url_may_name_a_database_by_its_number(path):
    assert BrokerSettings(broker_url=f"rediss://host{path}").broker_url.endswith(path)


@pytest.mark.parametrize("path", ["/abc", "/0/1", "/-1", "/0/"])
def test_one_that_is_no_number_is_refused(path):
    """redis-py would take it for database 0, or Celery would fail at it later."""
    with pytest.raises(ConfigurationError, match="the database behind the / is not a number"):
        BrokerSettings(broker_url=f"redis://host{path}")

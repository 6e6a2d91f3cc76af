import pytest

from broker.errors import ConfigurationError
from broker.records import Policy
from driver.settings import DriverSettings, load_driver_settings, models_to_switch


def test_the_defaults_are_the_published_ones():
    settings = DriverSettings()
    assert (settings.initial_worker_count, settings.schedule_interval, settings.batch_size) == (1, 0.1, 32)
    assert (settings.worker_monitor_interval, settings.detection_interval, settings.failure_threshold) == (5.0, 1.0, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schedule_interval", 0),
        ("schedule_interval", float("nan")),
        ("worker_monitor_interval", -1),
        ("detection_interval", 0),
        ("stall_timeout", 0),
        ("ageing", 0),
        ("max_batch_delay", -0.1),
        ("user_weights", "alice"),
        ("user_weights", "alice=many"),
        ("user_weights", "alice=0"),
        ("user_weights", "alice=nan"),
        ("initial_worker_count", -1),
        ("batch_size", 0),
        ("batch_tokens", 0),
        ("failure_threshold", 0),
        ("model", ""),
        ("autoscale", "3"),
        ("autoscale", "3,1"),
        ("drain_target", 0),
        ("scale_in_cooldown", -1),
        ("trend_window", 0),
        ("switch_models", "a,,b"),
        ("switch_models", "=a"),
        ("switch_models", "a="),
        ("switch_backlog", 0),
        ("switch_stay", 0),
        ("scale_command_timeout", 0),
        ("max_pending_requests", -1),
        ("max_user_pending_tokens", -1),
        ("result_cache_ttl", -1),
        ("result_cache_mib", -1),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        DriverSettings(**{name: value})


def test_all_problems_come_in_one_error():
    with pytest.raises(ConfigurationError) as caught:
        DriverSettings(batch_size=0, model="", detection_interval=0)
    assert all(name in str(caught.value) for name in ("batch_size", "model", "detection_interval"))


def test_no_worker_at_all_is_a_choice():
    assert DriverSettings(initial_worker_count=0).initial_worker_count == 0


def test_the_environment_is_read_and_keywords_win():
    settings = load_driver_settings({"STOKER_BATCH_SIZE": "8", "STOKER_MODEL": "m"}, batch_size=4)
    assert (settings.batch_size, settings.model) == (4, "m")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_time_that_never_comes_is_refused(value):
    with pytest.raises(ConfigurationError, match="stall_timeout"):
        DriverSettings(stall_timeout=value)


def test_users_have_weights():
    assert DriverSettings(user_weights="alice=2, b=c=0.5").weights_of_users == {"alice": 2.0, "b=c": 0.5}
    assert DriverSettings().weights_of_users == {}


def test_the_policy_is_what_the_environment_says():
    settings = load_driver_settings(
        {
            "STOKER_MAX_PENDING_REQUESTS": "7",
            "STOKER_MAX_USER_PENDING_TOKENS": "8",
            "STOKER_SHARE_IDENTICAL": "false",
            "STOKER_RESULT_CACHE_TTL": "60",
        }
    )
    assert settings.policy() == Policy(
        max_pending_requests=7, max_user_pending_tokens=8, share_identical=False, result_cache_ttl=60
    )
    assert DriverSettings().policy() == Policy()


def test_models_to_switch_have_a_name_and_a_place():
    settings = DriverSettings(switch_models="small, large=/models/a=b")
    assert models_to_switch(settings) == {"small": "small", "large": "/models/a=b"}
    assert models_to_switch(DriverSettings()) == {}


def test_values_of_another_type_are_refused_together():
    with pytest.raises(ConfigurationError, match=r"^model: expected `str`, got `int`; initial_worker_count: expected"):
        DriverSettings(model=5, initial_worker_count="2")


def test_more_workers_than_there_may_be_are_not_begun_with():
    with pytest.raises(ConfigurationError, match="initial_worker_count=10001 must be at most 10000"):
        DriverSettings(initial_worker_count=10_001)

import msgspec
import pytest

from broker.environment import PREFIX, VARIABLES, load
from broker.errors import ConfigurationError
from broker.settings import BrokerSettings
from driver.settings import DriverSettings
from gpu_worker.settings import WorkerSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    model: str = "default"
    slots: int = 4
    heartbeat_interval: float = 1.5
    simulated_faults: bool = False


def test_without_variables_the_defaults_count():
    assert load(Settings, {}) == Settings()


def test_text_becomes_the_fields_type():
    environ = {
        "STOKER_MODEL": "m",
        "STOKER_SLOTS": "8",
        "STOKER_HEARTBEAT_INTERVAL": "2",
        "STOKER_SIMULATED_FAULTS": "1",
    }
    assert load(Settings, environ) == Settings(model="m", slots=8, heartbeat_interval=2.0, simulated_faults=True)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("0", False), ("false", False)]
)
def test_a_switch_takes_the_usual_words(text, value):
    assert load(Settings, {"STOKER_SIMULATED_FAULTS": text}).simulated_faults is value


def test_an_empty_variable_is_as_good_as_none():
    assert load(Settings, {"STOKER_SLOTS": "", "STOKER_MODEL": ""}) == Settings()


def test_an_override_wins_over_the_environment():
    assert load(Settings, {"STOKER_SLOTS": "8"}, {"slots": 2}).slots == 2
    assert load(Settings, {"STOKER_SLOTS": "x"}, {"slots": 2}).slots == 2


def test_an_override_of_none_does_not():
    assert load(Settings, {"STOKER_SLOTS": "8"}, {"slots": None}).slots == 8


def test_an_override_may_be_empty():
    assert load(Settings, {"STOKER_MODEL": "m"}, {"model": ""}).model == ""


def test_an_unknown_variable_is_an_error():
    with pytest.raises(ConfigurationError, match="unknown environment variable STOKER_SLOT;"):
        load(Settings, {"STOKER_SLOT": "8"})


def test_other_programs_variables_are_not_ours():
    assert load(Settings, {"SLOTS": "9", "PATH": "/", "stoker_slots": "9"}) == Settings()


def test_all_problems_come_in_one_error():
    environ = {"STOKER_SLOT": "8", "STOKER_SLOTS": "many", "STOKER_HEARTBEAT_INTERVAL": "often"}
    with pytest.raises(ConfigurationError) as caught:
        load(Settings, environ)
    for part in ("STOKER_SLOT;", "STOKER_SLOTS='many': expected `int`", "STOKER_HEARTBEAT_INTERVAL='often'"):
        assert part in str(caught.value)


def test_an_override_is_blamed_by_its_own_name():
    with pytest.raises(ConfigurationError, match=r"^slots='many'"):
        load(Settings, {}, {"slots": "many"})


@pytest.mark.parametrize("kind", [BrokerSettings, DriverSettings, WorkerSettings])
def test_every_setting_has_a_known_variable(kind):
    known = {PREFIX + name.upper() for name in kind.__struct_fields__}
    assert known <= VARIABLES


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (BrokerSettings, "HEARTBEAT_TIMEOUT"),
        (DriverSettings, "SCHEDULE_INTERVAL"),
        (WorkerSettings, "DRAIN_TIMEOUT"),
    ],
)
def test_a_number_that_is_not_finite_is_an_error(kind, name, text):
    with pytest.raises(ConfigurationError, match=f"STOKER_{name}={text} must be finite"):
        load(kind, {f"STOKER_{name}": text})

"""What a `Driver` says before it has started anything."""

from pathlib import Path

import pytest

from broker.errors import ConfigurationError
from driver import Driver, DriverSettings
from driver.errors import DriverStateError


@pytest.mark.parametrize(
    "use",
    [
        lambda driver: driver.client,
        lambda driver: driver.log_folder,
        lambda driver: driver.check(),
        lambda driver: driver.wait_until_ready(),
        lambda driver: driver.scale_workers(1),
    ],
)
def test_before_its_start_it_says_so(use):
    with pytest.raises(DriverStateError, match="not started"):
        use(Driver())


@pytest.mark.parametrize("use", [lambda driver: driver.start(), lambda driver: driver.scale_workers(1)])
def test_after_its_stop_it_says_so(use):
    driver = Driver()
    driver.stop()
    driver.stop()
    with pytest.raises(DriverStateError, match="was stopped"):
        use(driver)


def test_a_port_for_a_broker_that_is_given_is_refused():
    with pytest.raises(ConfigurationError, match="port=6397"):
        Driver(DriverSettings(broker_url="redis://127.0.0.1:1/0"), port=6397)


@pytest.mark.parametrize("as_given", [Path, str])
def test_logs_cannot_be_kept_in_a_file(tmp_path, as_given):
    """Found before any worker is started."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="a file is in its place"):
        Driver(DriverSettings(broker_url="redis://127.0.0.1:1/0"), log_folder=as_given(tmp_path / "file")).start()


@pytest.mark.parametrize("port", [-1, 65_536, "7379", 7379.0, True])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigurationError, match="port must be a whole number from 0 to 65535"):
        Driver(DriverSettings(), port=port)

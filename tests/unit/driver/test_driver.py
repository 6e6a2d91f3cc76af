"""What a `Driver` says before it has started anything."""

import pytest

from driver import Driver
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

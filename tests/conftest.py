"""What holds for all tests: their order, and that none fails because of how they are started or of other work."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FOLDER = Path(__file__).parent
# What takes long begins early, so that processes that share the tests end together; and before the tests of what
# happens in time, those that only compute, while scripts/check runs beside them.
FIRST = ("worker", "e2e/test_chaos.py", "e2e", "redis", "unit")

# Hypothesis fails what is slow by the clock: 200 ms an example.
settings.register_profile("stoker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stoker")

# What a shell starts in the background ignores these, and so does all that it starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(trylast=True)  # after the order has been made random, which it stays within a folder
def pytest_collection_modifyitems(items):
    places = [FOLDER / name for name in FIRST]

    def place(item):
        return next((i for i, path in enumerate(places) if item.path.is_relative_to(path)), len(places))

    items.sort(key=place)

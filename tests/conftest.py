"""The order of the folders: what takes long begins first, so that processes that share the tests end together."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FIRST = ("e2e/test_chaos.py", "e2e", "worker", "redis", "unit")


@pytest.hookimpl(trylast=True)  # after the order has been made random, which it stays within a folder
def pytest_collection_modifyitems(items):
    places = [FOLDER / name for name in FIRST]

    def place(item):
        return next((i for i, path in enumerate(places) if item.path.is_relative_to(path)), len(places))

    items.sort(key=place)

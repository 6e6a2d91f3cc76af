"""A minute of random kills: the same that `scripts/chaos` does."""

import pytest

from tests.chaos.__main__ import describe
from tests.chaos.run import ChaosOptions, run_chaos


@pytest.mark.timeout(400)
def test_a_minute_of_random_kills_loses_nothing_and_doubles_nothing():
    report = run_chaos(ChaosOptions(seconds=60, seed=20261129))
    print(describe(report))
    assert report.is_clean, describe(report)
    assert report.outputs == report.requests
    assert sum(report.strikes.values()) >= 10, "too few strikes to prove anything"
    assert 0 <= report.recomputed_share < 0.10, "checkpoints must keep what deaths cost small"

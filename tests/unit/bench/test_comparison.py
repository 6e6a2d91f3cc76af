"""Comparisons with known figures: medians, ratios within a round, turns, failures."""

import math

import pytest

from tests.bench.comparison import MOST_FAILURES, compare, turned
from tests.bench.contender import Contender


def contender(name, *figures):
    """Gives these figures in turn; raises those that are exceptions."""
    left = list(figures)

    def measure():
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"requests_per_s": found}

    return Contender(name=name, measure=measure)


def compared(*contenders, rounds=3):
    return compare(contenders, rounds, say=lambda _: None)


def test_median_and_range_of_each_metric():
    found = compared(contender("Stoker", 10, 30, 20)).stoker.summary("requests_per_s")
    assert (found.median, found.low, found.high, found.count) == (20, 10, 30, 3)


def test_ratios_are_of_rounds_not_of_medians():
    found = compared(contender("Stoker", 10, 30, 20), contender("other", 10, 10, 40))
    ratio = found.ratio("other", "requests_per_s")
    # By round 1, 3 and 0.5: their median is 1, that of the medians would be 2.
    assert (ratio.median, ratio.low, ratio.high, ratio.count) == (1, 0.5, 3, 3)


def test_every_contender_runs_once_a_round_and_each_round_begins_with_another():
    order = []

    def noted(name):
        return Contender(name=name, measure=lambda: order.append(name) or {"m": 1})

    compared(noted("a"), noted("b"), noted("c"), rounds=4)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"


def test_a_turn_changes_nothing_but_the_order():
    assert turned([1, 2, 3], 4) == [2, 3, 1]


def test_a_failure_is_reported_and_the_other_rounds_count():
    found = compared(contender("Stoker", 8, 8, 8), contender("other", 4, ValueError("wrong result\nmore"), 2))
    other = found.result("other")
    assert other.failures == ("wrong result",)
    assert found.failures == ("other: wrong result",)
    assert other.summary("requests_per_s").count == 2
    assert found.ratio("other", "requests_per_s").median == 3  # of 2 and 4


def test_a_round_in_which_stoker_failed_has_no_ratio():
    found = compared(contender("Stoker", RuntimeError(), 8, 8), contender("other", 1, 2, 4))
    assert found.failures == ("Stoker: RuntimeError",)
    assert found.ratio("other", "requests_per_s").count == 2


def test_whoever_fails_again_and_again_is_not_run_again_but_stays_in_the_table():
    slow = contender("slow", *[TimeoutError("took longer than 9 s")] * MOST_FAILURES)
    found = compared(contender("Stoker", 1, 1, 1, 1), slow, rounds=4)
    assert found.result("slow").failures == ("took longer than 9 s", "not run again")
    assert found.result("slow").summary("requests_per_s") is None
    assert found.ratio("slow", "requests_per_s") is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1])
def test_what_is_no_measurement_is_a_failure(value):
    assert compared(contender("Stoker", value), rounds=1).failures == ("Stoker: gave no figure for requests_per_s",)


def test_no_figures_are_a_failure():
    silent = Contender(name="Stoker", measure=dict)
    assert compared(silent, rounds=1).failures == ("Stoker: gave no figure for anything",)


def test_nothing_is_divided_by_zero():
    found = compared(contender("Stoker", 0, 2), contender("other", 0, 1), rounds=2)
    assert found.failures == ()
    assert found.ratio("other", "requests_per_s").count == 1

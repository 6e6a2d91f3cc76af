import pytest

from broker.errors import InvalidRequestError
from driver.runs import RUN_BYTES, RUN_REQUESTS, SLOW_S, runs
from tests.support.clock import FakeClock
from tests.support.stage import request


@pytest.fixture
def clock():
    return FakeClock()


def sizes(requests, clock):
    return [len(run) for run in runs(requests, clock.now_s)]


def given(clock, pauses_s):
    """Requests that are each so long in coming."""
    for pause_s in pauses_s:
        clock.advance(pause_s)
        yield request()


def test_many_requests_go_in_runs_of_bounded_number(clock):
    assert sizes([request()] * (2 * RUN_REQUESTS + 1), clock) == [RUN_REQUESTS, RUN_REQUESTS, 1]


def test_large_requests_go_in_runs_of_bounded_size(clock):
    assert sizes([request("x" * (RUN_BYTES // 2))] * 5, clock) == [2, 2, 1]


def test_no_requests_are_no_runs(clock):
    assert sizes([], clock) == []


def test_what_is_slow_to_come_keeps_back_nothing_that_is_there(clock):
    assert sizes(given(clock, [0, 0, 60, 60, 0, 0]), clock) == [3, 1, 2]


def test_many_that_come_quickly_stay_together(clock):
    assert sizes(given(clock, [SLOW_S / 1000] * 300), clock) == [RUN_REQUESTS, 300 - RUN_REQUESTS]


def test_nothing_is_waited_for_before_what_is_there_has_gone(clock):
    asked = []

    def prompts():
        for place in range(3):
            asked.append(place)
            clock.advance(1.0)
            yield request()

    seen = [(len(run), len(asked)) for run in runs(prompts(), clock.now_s)]
    assert seen == [(1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("given", [["a text"], "text", [{"prompt": "x"}]])
def test_what_is_no_request_is_refused(given):
    with pytest.raises(InvalidRequestError, match="is a Request, not"):
        list(runs(given))

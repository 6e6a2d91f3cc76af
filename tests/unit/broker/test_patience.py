import logging

import pytest

from broker.errors import BrokerUnavailableError
from broker.patience import PAUSES_S, Patience
from tests.support.clock import FakeClock


def fails(times, answer="answer"):
    """A call that fails so many times before it answers."""
    calls = []

    def call():
        calls.append(None)
        if len(calls) <= times:
            raise BrokerUnavailableError("down")
        return answer

    call.calls = calls
    return call


@pytest.fixture
def clock():
    return FakeClock()


def test_an_answer_is_passed_on_at_once(clock):
    assert Patience(clock=clock)(fails(0)) == "answer"
    assert clock.slept_s == []


def test_it_waits_longer_each_time_up_to_a_limit(clock):
    assert Patience(clock=clock)(fails(6)) == "answer"
    assert clock.slept_s == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_it_says_once_that_it_waits_and_once_that_it_goes_on(clock, caplog):
    with caplog.at_level(logging.WARNING, "stoker"):
        Patience(clock=clock)(fails(5))
    assert [record.getMessage() for record in caplog.records] == ["waiting: down", "Redis answers again"]


def test_it_says_nothing_when_all_is_well(clock, caplog):
    Patience(clock=clock)(fails(0))
    assert caplog.records == []


def test_with_a_limit_it_gives_up_with_the_last_error(clock):
    call = fails(100)
    with pytest.raises(BrokerUnavailableError, match="down"):
        Patience(limit_s=2.0, clock=clock)(call)
    assert 2.0 <= sum(clock.slept_s) < 2.0 + PAUSES_S[-1]


def test_a_limit_of_nothing_means_one_try(clock):
    call = fails(1)
    with pytest.raises(BrokerUnavailableError):
        Patience(limit_s=0.0, clock=clock)(call)
    assert len(call.calls) == 1


def test_the_limit_counts_for_each_call_anew(clock):
    patience = Patience(limit_s=1.0, clock=clock)
    assert patience(fails(2)) == "answer"
    clock.advance(100)
    assert patience(fails(2)) == "answer"


def test_other_errors_are_not_its_business(clock):
    def call():
        raise KeyError("x")

    with pytest.raises(KeyError):
        Patience(clock=clock)(call)
    assert clock.slept_s == []

import pytest

from broker.errors import InvalidRequestError
from driver.deadline import Deadline


def test_without_a_limit_it_is_never_over():
    assert (Deadline(None).left_s, Deadline(None).is_over) == (None, False)


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_is_over_at_once(timeout):
    assert (Deadline(timeout).left_s, Deadline(timeout).is_over) == (0.0, True)


@pytest.mark.parametrize("timeout", [60, 60.5, float("inf")])
def test_some_time_is_left(timeout):
    assert 59 < Deadline(timeout).left_s <= timeout


@pytest.mark.parametrize("timeout", [float("nan"), "60"])
def test_what_is_no_time_is_refused(timeout):
    with pytest.raises(InvalidRequestError, match="timeout must be a number of seconds"):
        Deadline(timeout)

import pytest

from broker.bounds import Bounds, parse_bounds
from broker.errors import InvalidRequestError


@pytest.mark.parametrize("text", ["1,8", " 1 , 8 "])
def test_two_numbers_are_bounds(text):
    assert parse_bounds(text) == Bounds(1, 8)
    assert str(parse_bounds(text)) == "1,8"


@pytest.mark.parametrize(
    "text", ["", "3", "1,", ",1", "1,2,3", "a,b", "-1,2", "1.5,2", "²,3", "1" * 10 + "," + "1" * 10]
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidRequestError, match="MIN,MAX"):
        parse_bounds(text)


@pytest.mark.parametrize("text", ["2,1", "0,10001"])
def test_bounds_that_cannot_be_are_refused(text):
    with pytest.raises(InvalidRequestError, match="workers"):
        parse_bounds(text)

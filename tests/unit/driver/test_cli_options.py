import pytest
import typer
from typer.testing import CliRunner

from broker.errors import InvalidRequestError
from driver.batch_feed import Share
from driver.cli.app import app
from driver.cli.options import priority_of


def test_a_priority_is_given_by_name_or_number():
    assert [priority_of(text) for text in ("high", "normal", "low", "7", "-100")] == [10, 0, -10, 7, -100]


@pytest.mark.parametrize("text", ["urgent", "", "1.5", "101"])
def test_what_is_no_priority_is_refused(text):
    with pytest.raises(typer.BadParameter, match="high, normal, low"):
        priority_of(text)


@pytest.mark.parametrize("weight", ["0", "-1", "1001", "nan"])
def test_a_weight_out_of_range_is_refused_before_anything_is_read(tmp_path, weight):
    missing = str(tmp_path / "missing.jsonl")
    result = CliRunner().invoke(app, ["batch", missing, missing, "--weight", weight])
    assert isinstance(result.exception, InvalidRequestError)
    assert str(result.exception).startswith("weight must be from 0.001 to 1000, not ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": "3"}, "weight"),
        ({"user": "x" * 201}, "user"),
        ({"priority": 500}, "prio"),
    ],
)
def test_a_share_that_is_none_is_refused(options, said):
    with pytest.raises(InvalidRequestError, match=said):
        Share(**options)

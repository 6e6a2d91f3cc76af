import pytest
import typer

from driver.cli.options import priority_of


def test_a_priority_is_given_by_name_or_number():
    assert [priority_of(text) for text in ("high", "normal", "low", "7", "-100")] == [10, 0, -10, 7, -100]


@pytest.mark.parametrize("text", ["urgent", "", "1.5", "101"])
def test_what_is_no_priority_is_refused(text):
    with pytest.raises(typer.BadParameter, match="high, normal, low"):
        priority_of(text)

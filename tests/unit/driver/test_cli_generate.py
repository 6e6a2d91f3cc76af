import pytest

from broker.messages import FinishReason, Output, failed_output
from driver.cli import generate
from driver.deltas import Delta
from driver.errors import RequestFailedError


class FakeJob:
    """Gives these deltas."""

    def __init__(self, *deltas):
        self._deltas = deltas

    def stream(self, timeout):
        return iter(self._deltas)


def last(offset, text, whole):
    output = Output(index=0, text=whole, finish_reason=FinishReason.STOP)
    return Delta(index=0, offset=offset, text=text, output=output)


def printed(capsys, *deltas):
    generate._print_as_it_comes(FakeJob(*deltas), None)
    return capsys.readouterr()


def test_deltas_are_one_line(capsys):
    shown = printed(capsys, Delta(index=0, text="one"), Delta(index=0, offset=3, text=" two"), last(7, "", "one two"))
    assert (shown.out, shown.err) == ("one two\n", "")


def test_a_text_that_came_out_otherwise_is_printed_again_as_a_whole(capsys):
    shown = printed(capsys, Delta(index=0, text="one two"), last(5, "hree", "one three"))
    assert shown.out == "one two\none three\n"
    assert "it came out otherwise" in shown.err


def test_what_was_printed_before_an_error_is_a_line_of_its_own(capsys):
    failed = Delta(index=0, output=failed_output(0, "cancelled", "the job was cancelled"))
    with pytest.raises(RequestFailedError, match="the job was cancelled"):
        printed(capsys, Delta(index=0, text="one"), failed)
    assert capsys.readouterr().out == "one\n"

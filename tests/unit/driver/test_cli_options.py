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


@pytest.mark.parametrize(
    "arguments",
    [
        ("batch", "in", "out", "--workers", "1"),  # also what would be the default
        ("batch", "in", "out", "--engine", "simulated"),
        ("batch", "in", "out", "--log-folder", "x"),
        ("batch", "in", "out", "--local", "--broker", "redis://h"),
        ("batch", "in", "out", "--local", "--workers", "0"),
        ("generate", "x", "--engine", "simulated"),
        ("generate", "x", "--local", "--broker", "redis://h"),
        ("generate", "x", "--raw", "--system", "Be brief."),
        ("drain", "w", "--no-wait", "--timeout", "5"),
        ("ctl", "w", "sleep", "--no-wait", "--timeout", "5"),
        ("ctl", "w", "check_health", "--timeout", "5"),
        ("up", "--broker", "redis://h", "--port", "6397"),
    ],
    ids=" ".join,
)
def test_an_option_that_would_mean_nothing_is_refused(arguments):
    run = CliRunner().invoke(app, list(arguments))
    assert (run.exit_code, run.exception) == (2, None) or isinstance(run.exception, SystemExit)
    ignored = next(item for item in reversed(arguments) if item.startswith("--"))
    assert f"Invalid value for {ignored}" in run.output

import pytest

from broker.errors import ConfigurationError
from driver.errors import DriverStateError
from driver.scalers.local import LOG_PREFIX, STOP_GRACE_S, LocalWorkers, last_line

VARIABLE = "STOKER_DRAIN_TIMEOUT"


@pytest.mark.parametrize(
    "line",
    [
        "stoker worker: no model 'x'",
        "2026-01-02 03:04:05,678 supervisor ERROR no model 'x'",
        "no model 'x'",
    ],
)
def test_a_reason_is_what_the_log_says_without_who_says_it(line):
    assert LOG_PREFIX.sub("", line) == "no model 'x'"


def test_the_last_line_is_the_last_that_is_not_empty(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntwo\n\n")
    assert last_line(log) == "two"
    log.write_text("\n")
    assert last_line(log) == ""


@pytest.mark.parametrize(("own", "added", "drain_s"), [(None, {}, 30), ("90", {}, 90), ("90", {VARIABLE: "5"}, 5)])
def test_workers_have_their_drain_timeout_and_a_little_more(tmp_path, monkeypatch, own, added, drain_s):
    if own is not None:
        monkeypatch.setenv(VARIABLE, own)
    assert LocalWorkers(added, tmp_path)._stop_timeout_s == drain_s + STOP_GRACE_S


def test_a_drain_timeout_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="STOKER_DRAIN_TIMEOUT='soon'"):
        LocalWorkers({VARIABLE: "soon"}, tmp_path)


def test_stopped_workers_cannot_be_scaled(tmp_path):
    workers = LocalWorkers({}, tmp_path)
    workers.stop()
    workers.stop()
    with pytest.raises(DriverStateError, match="stopped"):
        workers.scale(1)
    assert workers.pids == []

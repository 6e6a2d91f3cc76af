import pytest

from driver.errors import DriverStateError
from driver.scalers.local import LOG_PREFIX, LocalWorkers, last_line


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


def test_stopped_workers_cannot_be_scaled(tmp_path):
    workers = LocalWorkers({}, tmp_path)
    workers.stop()
    workers.stop()
    with pytest.raises(DriverStateError, match="stopped"):
        workers.scale(1)
    assert workers.pids == []

import threading

import pytest

from broker.errors import InvalidRequestError
from gpu_worker.operations import Operations
from gpu_worker.standing import NotNowError
from tests.support.waiting import wait_until


@pytest.fixture
def stages():
    return []


@pytest.fixture
def operations(stages):
    return Operations(stages.append)


def test_what_is_quick_answers_with_its_result(operations):
    assert operations.last is None
    done = operations.begin("add", lambda _: 1 + 1, wait_s=60)
    assert (done.number, done.name, done.ended, done.result, done.error) == (1, "add", True, 2, "")
    assert operations.begin("add", lambda _: 3, wait_s=60).number == 2
    assert operations.last.result == 3


def test_a_second_one_is_refused_and_told_of_the_first(operations, stages):
    go_on = threading.Event()

    def work(note):
        note("half way")
        go_on.wait(60)

    begun = operations.begin("sleep", work, wait_s=0)
    assert not begun.ended
    wait_until(lambda: stages == ["sleep: half way"])
    assert operations.last.stage == "half way"
    (thread,) = [each for each in threading.enumerate() if each.name == "operation-sleep"]
    assert thread.daemon  # one that never ends must not keep the process
    with pytest.raises(NotNowError, match=r"busy with sleep, for [0-9]+\.[0-9] s now: half way"):
        operations.begin("wake", lambda _: None, wait_s=0)
    go_on.set()
    assert wait_until(lambda: operations.last.ended)
    assert operations.last.stage == ""
    assert operations.begin("wake", lambda _: None, wait_s=60).number == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidRequestError("not so"), "not so"),
        (KeyError("key"), "KeyError: 'key'"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_a_failure_is_its_record_and_not_the_end(operations, error, said):
    def fail(_):
        raise error

    failed = operations.begin("fail", fail, wait_s=60)
    assert (failed.ended, failed.error) == (True, said)
    assert operations.begin("next", lambda _: "fine", wait_s=60).result == "fine"

import pytest

from broker.errors import QueueFullError
from driver.room import MAX_PAUSE_S, MIN_PAUSE_S, Room
from tests.support.clock import FakeClock


def full(retry_after_s=None):
    return QueueFullError("full", limit="max_pending_requests", most=1, fill=1, wanted=1, retry_after_s=retry_after_s)


@pytest.mark.parametrize(
    ("told_s", "pause_s"), [(None, MAX_PAUSE_S), (100.0, MAX_PAUSE_S), (0.4, 0.4), (0.0, MIN_PAUSE_S)]
)
def test_it_waits_as_long_as_it_is_told_within_bounds(told_s, pause_s):
    clock = FakeClock()
    started_s = clock.now_s()
    Room(clock=clock).wait(full(told_s))
    assert clock.now_s() - started_s == pytest.approx(pause_s)


def test_it_waits_no_longer_than_it_may_in_all():
    clock = FakeClock()
    started_s, room = clock.now_s(), Room(1.5, clock)
    for _ in range(2):
        room.wait(full())
    with pytest.raises(QueueFullError):
        room.wait(full())
    assert clock.now_s() - started_s == pytest.approx(1.5)


def test_it_says_that_it_waits_once_until_there_was_room(caplog):
    caplog.set_level("INFO", "stoker")
    room = Room(clock=FakeClock())
    for found in (False, False, True, False):
        if found:
            room.found()
        room.wait(full())
    assert [record.message for record in caplog.records] == ["waiting: full"] * 2

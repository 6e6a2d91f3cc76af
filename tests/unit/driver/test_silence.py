import pytest

from driver.silence import ServerTime, Silence
from tests.support.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def silence(clock):
    return Silence(clock, 10.0)


def test_silence_counts(silence):
    assert silence.counts


def test_once_forgiven_everybody_has_the_whole_time(silence, clock):
    silence.forgive()
    clock.advance(9.9)
    assert not silence.counts
    clock.advance(0.2)
    assert silence.counts


@pytest.mark.parametrize(("uptime_s", "counts"), [(9, False), (10, True)])
def test_a_server_that_has_just_started_has_heard_nobody(silence, uptime_s, counts):
    silence.mind_restart(uptime_s)
    assert silence.counts == counts


def test_only_a_jump_of_the_server_clock_is_one(clock):
    server = ServerTime(clock)
    jumps = [server.jump_s(5_000)]
    for seconds, now_ms in [(1.0, 6_000), (1.0, 67_000), (60.0, 127_000), (10.0, 130_000)]:
        clock.advance(seconds)
        jumps.append(server.jump_s(now_ms))
    assert jumps == [0.0, 0.0, 60.0, 0.0, -7.0]

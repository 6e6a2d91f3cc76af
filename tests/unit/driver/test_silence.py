import pytest

from driver.silence import ServerTime, Silence, Silences
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


def counting(silences):
    return (silences.of_workers.counts, silences.absence_of_workers.counts, silences.of_clients.counts)


@pytest.fixture
def silences(clock):
    return Silences(clock, of_workers_s=10.0, of_clients_s=60.0)


def test_everybody_is_forgiven_together(silences):
    assert counting(silences) == (True, True, True)
    silences.forgive()
    assert counting(silences) == (False, False, False)


def test_a_restart_of_redis_says_nothing_against_absence(silences):
    silences.mind_restart(9)
    assert counting(silences) == (False, True, False)


@pytest.mark.parametrize(
    ("ours_s", "servers_s", "counts"), [(5.0, 5.0, True), (5.1, 5.1, False), (0.0, 5.1, False), (5.1, 0.0, False)]
)
def test_who_stands_still_for_half_of_the_time_hears_nobody(silences, clock, ours_s, servers_s, counts):
    silences.mind_stall(1_000)
    silences.note_end_of_look()
    clock.advance(ours_s)
    silences.mind_stall(int(1_000 + servers_s * 1000))
    assert counting(silences) == (counts, counts, counts)

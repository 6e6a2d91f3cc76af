import msgspec
import pytest

from broker.records import JobFront, PendingRequest, Session
from driver.estimates import (
    ENOUGH,
    HEADROOM,
    LONG,
    Lengths,
    WorkerSpeeds,
    expected_tokens,
    long_tokens,
    probable_tokens,
)
from tests.support.views import job


def front(answered, tokens):
    return JobFront(answered=answered, output_tokens=tokens)


# Lengths


def test_nothing_is_known_at_first():
    assert Lengths().note("j", "m", front(0, 0)) is None


def test_a_few_answers_say_nothing():
    lengths = Lengths()
    assert lengths.note("j", "m", front(ENOUGH - 1, 900)) is None
    assert lengths.note("j", "m", front(ENOUGH, 10 * ENOUGH)) == 10.0


def test_a_new_job_is_taken_for_one_like_its_models_others():
    lengths = Lengths()
    lengths.note("a", "m", front(ENOUGH, 10 * ENOUGH))
    lengths.note("b", "m", front(ENOUGH, 30 * ENOUGH))
    assert lengths.note("new", "m", front(0, 0)) == pytest.approx(20.0)
    assert lengths.note("new", "other", front(0, 0)) is None
    assert lengths.note("b", "m", front(ENOUGH, 30 * ENOUGH)) == 30.0


def test_the_same_counters_again_say_nothing_new():
    lengths = Lengths()
    for _ in range(10):
        lengths.note("a", "m", front(ENOUGH, 10 * ENOUGH))
    lengths.note("b", "m", front(ENOUGH, 30 * ENOUGH))
    assert lengths.mean("new", "m") == pytest.approx(20.0)


def test_a_model_that_changes_its_ways_is_followed():
    lengths = Lengths()
    lengths.note("a", "m", front(100_000, 1_000_000))
    lengths.note("b", "m", front(100_000, 5_000_000))
    assert lengths.mean("new", "m") > 45


def test_jobs_that_are_over_are_forgotten():
    lengths = Lengths()
    lengths.note("a", "m", front(ENOUGH, 10 * ENOUGH))
    lengths.forget("a")
    assert lengths.mean("a", "") is None
    assert lengths.mean("a", "m") == 10.0


def test_a_request_is_expected_to_be_somewhat_longer_than_the_mean_and_never_than_it_may():
    request = PendingRequest(index=0, cost=110, prompt_tokens=10)
    assert expected_tokens(request, None) == 110
    assert expected_tokens(request, 20.0) == 10 + HEADROOM * 20 + 1
    assert expected_tokens(request, 200.0) == 110


def test_a_request_whose_prompt_is_not_known_counts_in_full():
    """It was submitted by an older client."""
    assert expected_tokens(PendingRequest(index=0, cost=110), 5.0) == 110


def test_what_a_job_probably_takes_is_without_reserve():
    requests = tuple(PendingRequest(index=i, cost=110, prompt_tokens=10) for i in range(3))
    assert probable_tokens(job(requests=requests)) == 110
    assert probable_tokens(job(requests=requests, mean_output=20.0)) == 30
    assert probable_tokens(job(requests=())) == 1


def test_a_long_request_is_some_times_the_mean_and_never_longer_than_it_may():
    requests = tuple(PendingRequest(index=i, cost=cost, prompt_tokens=10) for i, cost in enumerate((30, 110)))
    assert long_tokens(job(requests=requests)) == 110
    assert long_tokens(job(requests=requests, mean_output=10.0)) == 10 + LONG * 10
    assert long_tokens(job(requests=())) == 1


# Speeds


def row(name, beat_s, tokens, running=2, slots=4):
    return Session(
        id=name,
        worker=name,
        epoch=1,
        state="ready",
        slots=slots,
        running=running,
        generated_tokens=tokens,
        beat_ms=int(beat_s * 1000),
    )


def noted(*beats):
    speeds = WorkerSpeeds()
    for beat in beats:
        speeds.note([beat] if isinstance(beat, Session) else beat)
    return speeds


def test_speed_is_what_came_between_two_beats_as_if_all_slots_were_in_use():
    speeds = noted(row("a", 1, 100), row("a", 3, 180))
    assert speeds.fastest_request() == 20.0
    assert speeds.speed(row("a", 3, 180)) == 80.0


def test_nothing_is_measured_of_a_worker_that_does_nothing():
    assert noted(row("a", 1, 100), row("a", 2, 180, running=0)).fastest_request() == 0.0
    assert noted(row("a", 1, 100), row("a", 2, 100)).fastest_request() == 0.0
    assert noted(row("a", 1, 100), row("a", 1, 100)).fastest_request() == 0.0


@pytest.mark.parametrize("running", [(1, 4), (4, 1), (0, 4)])
def test_a_measurement_while_many_come_or_go_counts_only_as_the_first(running):
    before, after = running
    beats = row("a", 1, 0, running=before), row("a", 2, 20 * after, running=after)
    assert noted(*beats).fastest_request() == 20.0
    known = row("a", 3, 20 * after + 10 * after, running=after), row("a", 4, 20 * after + 11 * after, running=before)
    assert noted(*beats, *known).fastest_request() == pytest.approx(20 - 0.3 * 10)


def test_who_is_not_measured_is_taken_for_like_the_others():
    speeds = noted([row("a", 1, 0), row("b", 1, 0)], [row("a", 2, 20), row("b", 2, 60)])
    assert speeds.speed(row("new", 0, 0, slots=4)) == pytest.approx(80.0)


def test_a_worker_with_little_to_do_is_not_taken_for_a_fast_one():
    """One request alone goes faster than each of many."""
    light = [row("light", 1, 0, running=1), row("light", 2, 100, running=1)]
    assert noted(*light).speed(light[1]) == 400.0
    speeds = noted([light[0], row("busy", 1, 0)], [light[1], row("busy", 2, 20)])
    assert speeds.speed(light[1]) == speeds.speed(row("busy", 2, 20)) == 40.0


def test_a_speed_measured_at_the_start_counts_until_the_worker_is_seen_at_work():
    new = msgspec.structs.replace(row("a", 1, 0), decode_tokens_per_s=500.0)
    assert noted(new).speed(new) == 500.0
    assert noted(new, row("a", 2, 20)).speed(new) == 40.0


def test_what_was_measured_at_the_start_outweighs_a_first_look_while_many_come():
    new = msgspec.structs.replace(row("a", 1, 0, running=1), decode_tokens_per_s=500.0)
    busy = msgspec.structs.replace(row("a", 2, 20, running=4), decode_tokens_per_s=500.0)
    assert noted(new, busy).speed(busy) == 500.0


def test_as_long_as_nobody_is_measured_all_are_equally_fast():
    assert WorkerSpeeds().speed(row("a", 0, 0, slots=4)) == WorkerSpeeds().speed(row("b", 0, 0, slots=400))


def test_a_new_measurement_moves_the_old_one():
    speeds = noted(row("a", 1, 0), row("a", 2, 20), row("a", 3, 60))
    assert 10 < speeds.fastest_request() < 20


def test_who_is_gone_is_forgotten():
    assert noted(row("a", 1, 0), row("a", 2, 20), []).fastest_request() == 0.0

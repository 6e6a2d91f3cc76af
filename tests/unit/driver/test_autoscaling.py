from itertools import pairwise
from math import ceil

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.autoscaling import Load, Point, ScaleLimits, decide, growth, start

LIMITS = ScaleLimits(least=1, most=10, drain_target_s=60, cooldown_s=120, trend_window_s=60)


def load(tokens=0.0, *, speed=100.0, requests=1_000, ready=1, **fields):
    return Load(
        pending_tokens=tokens, pending_requests=requests if tokens else 0, ready=ready, tokens_per_s=speed, **fields
    )


def run(loads, limits=LIMITS, wanted=1, step_s=1.0):
    """What is wanted after each load, one a second."""
    state = start(wanted, 0.0)
    found = []
    for place, item in enumerate(loads):
        state = decide(item, state, limits, (place + 1) * step_s)
        found.append(state.wanted)
    return found


def changes(numbers):
    return [(a, b) for a, b in pairwise(numbers) if a != b]


def test_so_many_are_wanted_that_the_work_is_done_in_the_target_time():
    assert run([load(24_000)]) == [4]  # 24,000 tokens in 60 s at 100 a second


def test_more_is_wanted_at_once_and_less_after_the_cooldown():
    found = run([load(24_000)] + [load(6_000)] * 130)
    assert found[:120] == [4] * 120
    assert found[-1] == 2  # one, with a quarter of headroom


def test_a_short_pause_changes_nothing():
    assert set(run(([load(24_000)] + [load(0)] * 100) * 3)) == {4}


def test_without_work_the_least_is_wanted_after_the_cooldown():
    assert run([load(24_000)] + [load(0)] * 121)[-2:] == [4, 1]


def test_the_first_request_starts_the_first_worker():
    none = msgspec.structs.replace(LIMITS, least=0)
    assert run([load(0, ready=0)] * 3, none, wanted=0) == [0, 0, 0]
    assert run([load(1, requests=1, ready=0, speed=0.0)], none, wanted=0) == [1]
    assert run([load(1, requests=1, ready=0)], none, wanted=0) == [1]
    assert run([Load(inflight_tokens=1, tokens_per_s=100)], none, wanted=0) == [1]


def test_while_the_speed_is_unknown_one_worker_finds_out_and_nobody_is_stopped():
    assert run([load(10**9, speed=0.0)] * 300) == [1] * 300
    assert run([load(1, speed=0.0)] * 300, wanted=3) == [3] * 300


def test_what_was_used_long_ago_keeps_no_worker():
    none = msgspec.structs.replace(LIMITS, least=0)
    assert run([load(600, used_tokens_per_s=90)] * 60 + [load(0)] * 600, none)[-1] == 0


def test_workers_that_sleep_come_on_top_and_are_no_reason_for_more_nor_fewer():
    """One is put to sleep while there is nothing to do, then work comes, and at last it is woken."""
    none, work = load(0, asleep=1), load(24_000, asleep=1)
    found = run([load(0), none, none, work, work, *[none] * 130, *[load(0)] * 130], wanted=1)
    assert found[:5] == [1, 1, 1, 5, 5]
    assert found[134] == 1  # the one that sleeps is there: it is the least
    assert found[-1] == 1
    assert run([load(24_000, asleep=8)] * 3) == [10] * 3  # bounds count all


def test_a_worker_without_a_request_of_its_own_is_of_no_use():
    long = Load(inflight_tokens=10**6, ready=2, tokens_per_s=100)
    assert run([long], wanted=2) == [2]
    assert run([msgspec.structs.replace(long, pending_requests=3)], wanted=2) == [5]


def test_workers_that_load_longer_than_the_work_lasts_are_not_started():
    assert run([load(24_000, startup_s=240)]) == [1]
    assert run([load(96_000, startup_s=240)]) == [4]


def test_the_number_of_the_moment_holds_while_nobody_knows_better():
    assert run([load(0)] * 119, wanted=5) == [5] * 119


def test_what_was_seen_before_a_long_gap_says_nothing():
    state = decide(load(0), start(5, 0.0), LIMITS, 1.0)
    assert decide(load(0), state, LIMITS, 500.0).wanted == 5


def test_a_cooldown_shorter_than_the_pause_between_looks_ends_all_the_same():
    assert run([load(0)] * 3, msgspec.structs.replace(LIMITS, cooldown_s=1.5), wanted=3) == [3, 1, 1]


def played(work_per_s, seconds=3_600, *, speed=100.0, startup_s=20):
    """What is wanted each second, while as many workers as are wanted do what comes, as soon as they are ready."""
    work, state, ready_at_s, found = 0.0, start(1, 0.0), [0.0], []
    for second in range(1, seconds):
        ready = sum(at_s <= second for at_s in ready_at_s)
        used = min(work + work_per_s(second), ready * speed)
        work += work_per_s(second) - used
        requests = int(work / 500)
        item = load(work, speed=speed, requests=requests, ready=ready, used_tokens_per_s=used, startup_s=startup_s)
        state = decide(item, state, msgspec.structs.replace(LIMITS, most=50), second)
        ready_at_s = ready_at_s[: state.wanted] + [second + startup_s] * (state.wanted - len(ready_at_s))
        found.append(state.wanted)
    return found


@pytest.mark.parametrize("workers", [0.3, 2.5, 7.9])
def test_work_that_comes_steadily_is_kept_up_with_by_a_number_that_stays(workers):
    found = played(lambda _: workers * 100)
    assert len(set(found[600:])) == 1
    assert workers <= found[-1] <= ceil(workers * 1.25)


def test_bursts_that_come_again_and_again_leave_the_number_alone():
    found = played(lambda second: 25_000 if second % 100 == 0 else 0)
    assert len(set(found[200:])) == 1


def test_workers_that_are_in_use_are_kept_and_no_more_are_asked_for():
    item = load(100, used_tokens_per_s=1_000)  # more than three can do: the speed was measured badly
    assert run([item] * 300, wanted=3) == [3] * 300


def test_new_bounds_count_at_once():
    assert run([load(0)], msgspec.structs.replace(LIMITS, least=3, most=3), wanted=8) == [3]
    assert run([load(0)], msgspec.structs.replace(LIMITS, least=3, most=3), wanted=0) == [3]


def rising(tokens_per_s, seconds=61):
    return [load(tokens_per_s * second) for second in range(seconds)]


def test_steady_growth_is_met_before_it_has_come():
    ahead = run([msgspec.structs.replace(item, startup_s=30) for item in rising(300)])
    assert ahead[-1] > run(rising(300))[-1] == 3


def test_one_large_job_is_no_trend():
    step = [Point(second, 0.0 if second < 20 else 9_000.0) for second in range(61)]
    assert all(growth(step[: last + 1], 60, 30) == 0 for last in range(60))
    assert growth([Point(p.at_s, 100 * p.at_s) for p in step], 60, 30) == pytest.approx(1_500)


def test_the_history_stays_short_however_often_one_decides():
    state = start(1, 0.0)
    for place in range(2_000):
        state = decide(load(1_000 + place % 7), state, LIMITS, place * 0.1)
    assert len(state.work) <= 65
    assert len(state.needs) <= 10


# Properties

tokens = st.floats(0, 10**6)
limits = st.builds(
    lambda least, more, target, cooldown: ScaleLimits(
        least=least, most=least + more, drain_target_s=target, cooldown_s=cooldown, trend_window_s=30
    ),
    st.integers(0, 5),
    st.integers(0, 20),
    st.floats(1, 600),
    st.floats(1, 60),
)
loads = st.builds(
    Load,
    pending_tokens=tokens,
    inflight_tokens=tokens,
    pending_requests=st.integers(0, 50),
    ready=st.integers(0, 20),
    coming=st.integers(0, 20),
    tokens_per_s=st.sampled_from([0.0, 10.0, 1_000.0]),
    used_tokens_per_s=st.sampled_from([0.0, 10.0, 5_000.0]),
    startup_s=st.sampled_from([0.0, 5.0, 90.0]),
)
histories = st.lists(st.tuples(loads, st.floats(0.1, 20)), max_size=30)


def after(history, bounds):
    """The state after a history, and the time."""
    now_s = 0.0
    state = start(2, now_s)
    for item, pause_s in history:
        now_s += pause_s
        state = decide(item, state, bounds, now_s)
    return state, now_s


@given(histories, loads, limits)
def test_the_number_is_always_within_its_bounds(history, item, bounds):
    state, now_s = after(history, bounds)
    assert bounds.least <= decide(item, state, bounds, now_s + 1).wanted <= bounds.most


@settings(max_examples=40)
@given(histories, loads, limits)
def test_a_load_that_stays_as_it_is_gives_a_number_that_stays_as_it_is(history, item, bounds):
    state, now_s = after(history, bounds)
    settled = []
    while now_s < 1_000:
        now_s += 1
        state = decide(item, state, bounds, now_s)
        settled.append(state.wanted)
    assert len(set(settled[700:])) == 1


@given(loads, limits)
def test_a_constant_load_moves_the_number_one_way_only(item, bounds):
    found = run([item] * 200, bounds, wanted=3)
    assert found == sorted(found) or found == sorted(found, reverse=True)


@given(histories, loads, limits, tokens, tokens, st.integers(0, 50))
def test_more_work_never_wants_fewer_workers(history, item, bounds, pending, inflight, requests):
    state, now_s = after(history, bounds)
    more = msgspec.structs.replace(
        item,
        pending_tokens=item.pending_tokens + pending,
        inflight_tokens=item.inflight_tokens + inflight,
        pending_requests=item.pending_requests + requests,
    )
    lower, higher = (decide(each, state, bounds, now_s + 1).wanted for each in (item, more))
    assert lower <= higher


@settings(max_examples=40)
@given(
    st.floats(100, 10**6),
    st.lists(st.floats(-0.1, 0.1), min_size=300, max_size=300),
    st.sampled_from([0.0, 30.0]),
    st.integers(1, 20),
)
def test_noise_of_a_tenth_never_turns_the_number_round(mean, noise, startup_s, wanted):
    bounds = ScaleLimits(least=0, most=1_000, cooldown_s=20, trend_window_s=20)
    items = [load(mean * (1 + part), requests=10**6, startup_s=startup_s) for part in noise]
    moves = changes(run(items, bounds, wanted=wanted))
    assert all((b > a) == (moves[0][1] > moves[0][0]) for a, b in moves)


@settings(max_examples=30)
@given(histories, limits)
def test_without_work_it_ends_at_the_least(history, bounds):
    state, now_s = after(history, bounds)
    last_s = now_s + 2 * bounds.cooldown_s + 1_000  # the average of what was used is long gone
    while now_s < last_s:
        now_s += max(1.0, bounds.cooldown_s / 4)
        state = decide(Load(), state, bounds, now_s)
    assert state.wanted == bounds.least


@given(tokens.filter(lambda value: value > 0), limits)
def test_enough_are_wanted_for_the_target(amount, bounds):
    (found,) = run([load(amount, speed=50.0, requests=10**6)], bounds, wanted=0)
    assert found == min(max(ceil(amount / (50 * bounds.drain_target_s) - 1e-9), 1, bounds.least), bounds.most)

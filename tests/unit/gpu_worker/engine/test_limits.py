from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.limits import LEAST_STEP_TOKENS, Bound, Limits, StepSize

QUIET = 10


def limits(slots=64, step_tokens=256):
    return Limits(slots=slots, step_tokens=step_tokens, quiet_steps=QUIET)


def sizes(some):
    return some.slots.now, some.step_tokens.now


def test_a_shortage_halves_what_the_step_held_not_what_was_allowed():
    some = limits()
    assert some.shrink(StepSize(rows=10, tokens=120), 5)
    assert sizes(some) == (5, 60)


def test_one_request_with_many_tokens_leaves_the_slots():
    some = limits()
    assert some.shrink(StepSize(rows=1, tokens=256), 5)
    assert sizes(some) == (64, 128)
    assert some.grow()  # one of the two is enough


def test_an_unknown_step_counts_as_a_full_one():
    some = limits()
    assert some.shrink(StepSize(), 5)
    assert sizes(some) == (32, 128)


def test_one_request_with_the_fewest_tokens_cannot_shrink():
    some = limits()
    assert not some.shrink(StepSize(rows=1, tokens=LEAST_STEP_TOKENS), 5)
    assert not some.shrink(StepSize(rows=1, tokens=1), 5)
    assert sizes(some) == (64, 256)


def test_what_one_request_taught_is_forgotten_with_it():
    some = limits()
    some.shrink(StepSize(rows=8, tokens=256), 5)
    some.settle()
    earlier = some.quiet(5 + QUIET), some.grow(), sizes(some)
    for size in (StepSize(rows=6, tokens=100), StepSize(rows=1, tokens=50), StepSize(rows=1, tokens=25)):
        assert some.shrink(size, 20)
    some.forgive()
    assert (True, True, sizes(some)) == earlier
    some.forgive()
    assert (True, True, sizes(some)) == earlier


def test_growth_takes_quiet_steps():
    some = limits()
    some.shrink(StepSize(rows=8, tokens=256), 100)
    assert not some.quiet(100 + QUIET - 1)
    assert some.quiet(100 + QUIET)
    assert not some.quiet(100 + 2 * QUIET - 1)


def quiet_times(bound_of, some, times):
    seen = []
    for _ in range(times):
        some.grow()
        seen.append(bound_of(some))
    return seen


def test_growth_approaches_what_failed_and_does_not_reach_it_soon():
    some = limits()
    some.shrink(StepSize(rows=32, tokens=200), 0)
    assert quiet_times(lambda s: s.slots.now, some, 7) == [24, 28, 30, 31, 31, 31, 31]
    seen = quiet_times(lambda s: s.slots.now, some, 200)
    assert seen == sorted(seen)
    assert seen[8] < 40
    assert seen[-1] == 64


def test_what_fails_again_is_left_alone_for_longer():
    def growths_until_above(some, failed):
        times = 0
        while some.slots.now < failed:
            some.grow()
            times += 1
        return times

    some = limits()
    waits = []
    for _ in range(4):
        some.shrink(StepSize(rows=32, tokens=200), 0)
        waits.append(growths_until_above(some, 32))
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]


@given(fits=st.integers(1, 64), rounds=st.integers(1, 400))
def test_whatever_fits_is_found_with_few_failures(fits, rounds):
    some, failures = limits(), 0
    for _ in range(rounds):
        if some.slots.now > fits:
            assert some.shrink(StepSize(rows=some.slots.now, tokens=200), 0)
            failures += 1
        else:
            some.grow()
    assert 1 <= some.slots.now <= 64
    assert failures <= 8 + rounds // 8


def test_another_end_of_growth():
    bound = Bound(64)
    bound.set_most(80)
    assert bound.now == 80
    bound.set_most(40)
    assert bound.now == 40
    bound.shrink(40)
    bound.set_most(80)
    assert bound.now == 20
    bound.set_most(10)
    assert (bound.now, bound.grow()) == (10, False)


def test_all_but_what_is_needed_can_go_at_once():
    bound = Bound(100, 3)
    bound.shrink_to(11)
    assert (bound.now, bound.can_double) == (11, True)
    bound.shrink_to(1)
    assert (bound.now, bound.can_double) == (3, True)
    bound.grow()
    bound.grow()
    assert (bound.now, bound.can_double) == (8, False)


def test_what_failed_is_tried_again_after_a_patience_that_doubles_with_each_failure():
    def patience(some):
        """Quiet times without growth, until there is some again."""
        while some.grow():
            pass
        times = 1
        while not some.grow():
            times += 1
        return times

    some = limits()
    some.shrink(StepSize(rows=32, tokens=200), 0)
    assert patience(some) == 8
    some.shrink(StepSize(rows=32, tokens=200), 0)
    some.shrink(StepSize(rows=16, tokens=100), 0)  # still the same failure
    assert patience(some) == 16
    for _ in range(6):
        some.shrink(StepSize(rows=32, tokens=200), 0)
        longest = patience(some)
    assert longest == 256


def test_a_bound_that_cannot_shrink_says_so():
    bound = Bound(100, 3)
    assert not bound.at_least
    bound.shrink_to(1)
    assert bound.at_least


def test_a_failure_below_the_least_leaves_room_to_grow():
    bound = Bound(256, 16)
    bound.shrink(8)
    assert (bound.now, bound.grow()) == (16, False)
    assert bound.relax()
    bound.grow()
    assert bound.now == 18


def test_twice_as_much_may_be_had_just_below_what_failed():
    bound = Bound(64)
    bound.shrink(9)
    assert (bound.now, bound.can_double) == (4, True)
    bound.shrink(8)  # no more than it is now can have failed
    assert (bound.now, bound.can_double) == (2, False)


def test_what_failed_moves_up_to_the_most_and_is_then_forgotten():
    bound = Bound(10)
    assert not bound.relax()
    bound.shrink(8)
    assert bound.relax()
    while bound.grow():
        pass
    assert bound.now == 9
    assert bound.relax()
    bound.set_most(20)
    assert bound.now == 9
    assert bound.grow()
    assert bound.now == 18

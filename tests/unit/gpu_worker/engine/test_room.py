"""How much a loop may hold: what a shortage takes from it, and what comes back."""

import pytest

from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.limits import StepSize
from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.room import Room

OPTIONS = LoopOptions(page_size=10, num_blocks=100, max_batch_tokens=64, max_requests=8, quiet_steps=10)
ALONE = StepSize(rows=1, tokens=1)  # nothing of the step can shrink


class Loop:
    """As large as it was asked for."""

    def __init__(self, options):
        self.slots, self.step_tokens = options.max_requests, options.max_batch_tokens
        self.kv_tokens = options.page_size * options.num_blocks

    def limit(self, *, slots, step_tokens):
        self.limited = slots, step_tokens


@pytest.fixture
def fits():
    """The most blocks for which there is memory."""
    return [1000]


@pytest.fixture
def room(fits):
    def make(options):
        if options.num_blocks > fits[0]:
            raise RuntimeError("CUDA out of memory")
        return Loop(options)

    return Room(OPTIONS, make)


def make(room):
    return room.make_loop(graphs=False)


def test_one_request_is_given_the_cache_but_for_what_the_largest_in_hand_needs(room):
    loop = make(room)
    assert room.shrink(ALONE, 400, loop, 0)
    assert make(room).kv_tokens == 410
    assert room.full_kv_tokens == 1000


def test_where_all_the_cache_is_needed_nothing_can_be_given(room):
    loop = make(room)
    assert not room.shrink(ALONE, 990, loop, 0)
    assert make(room).kv_tokens == 1000


def test_the_least_cache_is_not_given_away(room):
    loop = make(room)
    assert room.shrink(ALONE, 1, loop, 0)
    loop = make(room)
    assert loop.kv_tokens == 30
    assert not room.shrink(ALONE, 1, loop, 0)


def test_a_step_that_can_shrink_leaves_the_cache(room):
    loop = make(room)
    assert room.shrink(StepSize(rows=8, tokens=64), 1, loop, 0)
    loop = make(room)
    assert (loop.kv_tokens, loop.limited) == (1000, (4, 32))


def test_one_that_was_too_large_takes_what_it_taught_with_it(room):
    loop = make(room)
    room.shrink(ALONE, 400, loop, 0)
    room.shrink(ALONE, 100, make(room), 0)
    room.forgive()
    assert make(room).kv_tokens == 1000


def test_what_taught_something_and_is_through_is_not_forgotten(room):
    room.shrink(ALONE, 400, make(room), 0)
    room.settle()
    room.shrink(ALONE, 100, make(room), 0)
    room.forgive()
    assert make(room).kv_tokens == 410


def test_the_cache_grows_where_that_is_worth_a_new_loop_or_when_idle(room):
    room.shrink(ALONE, 400, make(room), 0)
    loop = make(room)
    assert not room.grow(loop, 9, idle=True)  # not yet quiet for long enough
    assert room.grow(loop, 10, idle=False)  # twice as much is known to be there
    loop = make(room)
    assert loop.kv_tokens == 700
    assert not room.grow(loop, 20, idle=False)
    assert room.grow(loop, 30, idle=True)
    assert make(room).kv_tokens == 850


def test_sizes_that_do_not_fit_are_refused_and_those_before_come_back(room, fits):
    make(room)
    fits[0] = 100
    room.resize(slots=2, kv_tokens=5000)
    loop = make(room)
    assert (loop.slots, loop.kv_tokens) == (8, 1000)
    assert "out of memory" in room.refused
    room.resize(slots=2, kv_tokens=500)
    loop = make(room)
    assert (loop.slots, loop.kv_tokens, room.refused) == (2, 500, "")
    fits[0] = 30  # a later shortage is no refusal of these sizes
    loop = make(room)
    assert (loop.slots, loop.kv_tokens, room.refused) == (2, 250, "")


def test_a_cache_that_never_fits_is_the_end(room, fits):
    fits[0] = 2
    with pytest.raises(EngineDeadError, match="out of memory"):
        make(room)

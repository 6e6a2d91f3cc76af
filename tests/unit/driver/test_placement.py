import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records import PendingRequest
from driver.batching import Batch
from driver.placement import Demand, Memory, Room, finishing_quotas
from tests.support import views
from tests.support.views import worker

MUCH = Demand(requests=10**6, tokens=10**8)


def room(*workers, demand=MUCH, memory=None, now_s=0.0, delay_s=0.0):
    found = {w.model: demand for w in workers}
    return Room(workers, found, memory or Memory(), now_s=now_s, max_batch_delay_s=delay_s)


def chosen(*workers, model="m", prefix=0, **options):
    place = room(*workers, **options).choose(model, prefix)
    return place and place.view.worker


def batch(count=1, tokens=10, prefix=0):
    requests = tuple(PendingRequest(index=i, cost=tokens, prefix=prefix) for i in range(count))
    return Batch(requests=requests, expected=(tokens,) * count)


def test_the_one_that_is_done_soonest_is_chosen():
    assert chosen(worker("a", tokens_in_hand=300), worker("b", tokens_in_hand=100)) == "b"
    assert chosen(worker("a", tokens_in_hand=300, speed=4.0), worker("b", tokens_in_hand=100)) == "a"


def test_one_that_runs_it_at_once_comes_before_one_that_lets_it_wait():
    assert chosen(worker("a", idle_slots=0), worker("b", tokens_in_hand=900)) == "b"


def test_the_one_with_most_free_slots_is_chosen_of_idle_ones():
    assert chosen(worker("a", free_slots=3), worker("b", free_slots=5), worker("c", free_slots=4)) == "b"


def test_free_tokens_decide_between_equal_slots():
    assert chosen(worker("a", free_tokens=10), worker("b", free_tokens=20)) == "b"


def test_the_name_decides_between_equals():
    assert chosen(worker("b"), worker("a"), worker("c")) == "a"


@pytest.mark.parametrize("full", [{"free_slots": 0}, {"free_tokens": 0}, {"free_batches": 0}, {"isolated": True}])
def test_one_without_room_is_not_chosen(full):
    assert chosen(worker("a", **full)) is None
    assert chosen(worker("a", **full), worker("b", free_slots=1)) == "b"


def test_only_a_worker_of_the_model_is_chosen():
    assert chosen(worker("a", model="other")) is None
    assert chosen(worker("a", model="other"), worker("b"), model="m") == "b"


def test_no_model_means_any():
    assert chosen(worker("a", model="other"), model="") == "a"
    assert chosen(worker("a", model="other"), worker("b", free_slots=9), model="") == "b"


def test_nobody_there_is_nobody_chosen():
    assert chosen() is None


def test_what_is_given_counts():
    there = room(worker("a", free_slots=2), worker("b", free_slots=1))
    for name in ("a", "b", "a", None):
        place = there.choose("m")
        assert (place and place.view.worker) == name
        if place:
            there.fill(place, batch())


# The window


def busy(name="a", free_slots=8, **fields):
    """All slots in use; eight requests may wait there."""
    return worker(name, **{"slots": 32, "in_hand": 40 - free_slots, "idle_slots": 0, "free_slots": free_slots} | fields)


def test_a_window_is_refilled_when_half_of_it_is_empty():
    assert chosen(busy(free_slots=3), delay_s=1.0) is None
    assert chosen(busy(free_slots=4), delay_s=1.0) == "a"


def test_a_window_is_refilled_after_the_delay_at_the_latest():
    memory = Memory()
    for now_s, name in ((5.0, None), (5.9, None), (6.0, "a")):
        assert chosen(busy(free_slots=1), memory=memory, now_s=now_s, delay_s=1.0) == name


def test_the_delay_begins_anew_after_a_refill():
    memory = Memory()
    chosen(busy(free_slots=1), memory=memory, now_s=0.0, delay_s=1.0)
    there = room(busy(free_slots=1), memory=memory, now_s=1.0, delay_s=1.0)
    there.fill(there.choose("m"), batch())
    assert chosen(busy(free_slots=1), memory=memory, now_s=1.5, delay_s=1.0) is None


def test_a_lone_request_goes_out_at_once_while_a_slot_is_idle():
    idle = worker("a", slots=32, in_hand=31, idle_slots=1, free_slots=9)
    assert chosen(idle, delay_s=9.0, demand=Demand(requests=1, tokens=10)) == "a"


def test_near_the_end_windows_stay_empty():
    assert chosen(busy(), demand=Demand(requests=5, tokens=50)) is None


# The end


def quotas(*workers, requests, tokens_each=100, longest=None):
    demand = Demand(requests=requests, tokens=requests * tokens_each, longest=longest or tokens_each)
    return finishing_quotas(workers, demand)


def test_while_much_waits_there_are_no_quotas():
    found = quotas(worker("a", slots=8), worker("b", slots=8), requests=16)
    assert found == {"session of a": None, "session of b": None}


def test_before_the_end_a_worker_that_would_take_a_long_request_beyond_it_gets_nothing():
    slow, fast = worker("slow", slots=8), worker("fast", slots=8, speed=10.0)
    assert quotas(slow, fast, requests=60)["session of slow"] is None
    assert quotas(slow, fast, requests=60, longest=300) == {"session of slow": 0, "session of fast": None}


def test_without_bound_nobody_is_left_out():
    slow, fast = worker("slow", slots=8), worker("fast", slots=8, speed=1000.0)
    assert set(quotas(slow, fast, requests=float("inf"), longest=10**6).values()) == {None}


def test_equal_workers_get_equal_parts():
    assert quotas(worker("a", slots=8), worker("b", slots=8), requests=6) == {"session of a": 3, "session of b": 3}


def test_a_faster_worker_gets_more():
    slow, fast = worker("slow", slots=8), worker("fast", slots=8, speed=3.0)
    assert quotas(slow, fast, requests=12) == {"session of slow": 3, "session of fast": 9}


def test_what_a_worker_has_already_counts():
    full, empty = worker("full", slots=8, in_hand=4, tokens_in_hand=400), worker("empty", slots=8)
    assert quotas(full, empty, requests=6) == {"session of full": 2, "session of empty": 4}


def test_one_that_would_finish_long_after_all_others_gets_nothing():
    slow, fast = worker("slow", slots=8), worker("fast", slots=8, speed=100.0)
    assert quotas(slow, fast, requests=2) == {"session of slow": 0, "session of fast": 2}


def takes_something(workers):
    """Now, or when something of theirs has ended."""
    return any(not worker.isolated and (worker.has_room or worker.in_hand) for worker in workers)


@given(views.workers.filter(takes_something), st.integers(1, 50), st.integers(1, 500))
def test_quotas_have_a_place_for_everything_that_waits(workers, requests, tokens):
    found = quotas(*workers, requests=requests, tokens_each=tokens).values()
    if None not in found:
        assert sum(found) >= requests
        assert min(found) >= 0


# Prefixes


def test_a_worker_that_has_read_the_beginning_is_preferred():
    memory = Memory()
    memory.note_prefix(7, "session of b")
    workers = [worker("a", free_slots=9), worker("b")]
    assert chosen(*workers, prefix=7, memory=memory) == "b"
    assert chosen(*workers, prefix=8, memory=memory) == "a"
    assert chosen(*workers, memory=memory) == "a"


def test_but_not_if_it_is_much_busier():
    memory = Memory()
    memory.note_prefix(7, "session of b")
    assert chosen(worker("a"), worker("b", in_hand=12), prefix=7, memory=memory) == "a"
    assert chosen(worker("a"), worker("b", idle_slots=0), prefix=7, memory=memory) == "a"
    assert chosen(worker("a"), worker("b", free_slots=0), prefix=7, memory=memory) == "a"


def test_who_gets_a_beginning_has_read_it():
    memory = Memory()
    there = room(worker("a"), memory=memory)
    there.fill(there.choose("m", 7), batch(prefix=7))
    assert list(memory.readers(7)) == ["session of a"]


@given(views.workers)
def test_the_order_of_the_workers_does_not_matter(workers):
    shuffled = list(workers)
    random.Random(0).shuffle(shuffled)
    assert chosen(*shuffled) == chosen(*workers)

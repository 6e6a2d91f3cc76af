import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records import Session
from driver.balancing import CALM_MS, GAIN, HOLD_MS, MOVE_S, BalanceMemory, Recall, recalls
from tests.support.views import worker

SLOTS = 4


def holder(name="slow", waiting=2, **fields):
    """A worker whose slots are all in use; requests are of 100 tokens."""
    in_hand = SLOTS + waiting
    values = {"slots": SLOTS, "idle_slots": 0, "free_slots": 0, "in_hand": in_hand, "waiting": waiting, "speed": 4.0}
    return worker(name, tokens_in_hand=100 * in_hand, **(values | fields))


def idle(name="fast", slots=SLOTS, **fields):
    return worker(name, **({"free_slots": slots, "slots": SLOTS, "speed": 40.0, "free_tokens": 10_000} | fields))


def counts(holders, places):
    return {recall.worker: recall.count for recall in recalls(holders, places)}


def test_what_waits_at_a_slow_worker_goes_to_one_that_has_nothing_to_do():
    (found,) = recalls([holder()], [idle()])
    assert found == Recall(session_id="session of slow", worker="slow", count=2)


def test_no_more_than_the_others_can_run_at_once():
    assert counts([holder(waiting=9)], [idle(slots=1), idle("other", slots=2)]) == {"slow": 3}
    assert counts([holder(waiting=9)], [idle(free_tokens=250)]) == {"slow": 2}


@pytest.mark.parametrize(
    "fields", [{"idle_slots": 0}, {"waiting": 1}, {"free_batches": 0}, {"isolated": True}, {"leaving": True}]
)
def test_nothing_for_one_that_could_not_begin_it(fields):
    assert counts([holder()], [idle(**fields)]) == {}


def test_nothing_that_would_not_end_clearly_sooner_elsewhere():
    assert counts([holder(waiting=1)], [idle(speed=3.0)]) == {}
    assert counts([holder(waiting=2)], [idle(speed=3.0)]) == {"slow": 1}


def test_as_fast_a_worker_relieves_a_long_queue():
    assert counts([holder(waiting=4)], [idle(speed=4.0)]) == {"slow": 4}


def test_what_is_over_in_a_moment_is_not_worth_a_move():
    assert counts([holder(speed=4000.0)], [idle(speed=40_000.0)]) == {}


def test_who_leaves_gives_all_to_whoever_is_there_and_comes_first():
    leaving = holder("leaving", leaving=True, speed=400.0)
    assert counts([leaving], [idle(speed=1.0)]) == {"leaving": 2}
    assert counts([holder(), leaving], [idle(slots=3)]) == {"leaving": 2, "slow": 1}


def test_who_would_take_longest_is_relieved_first():
    assert counts([holder("slow"), holder("slower", speed=1.0)], [idle(slots=1)]) == {"slower": 1}


def test_suspects_stay_where_they_are():
    assert counts([holder(isolated=True)], [idle()]) == {}


def test_an_old_beat_takes_no_more_than_is_there():
    assert counts([holder(waiting=5, in_hand=2)], [idle()]) == {"slow": 2}


_speeds = st.sampled_from([1.0, 2.0, 4.0, 40.0])
_holders = st.lists(
    st.builds(
        lambda waiting, speed, leaving, isolated: {
            "waiting": waiting,
            "speed": speed,
            "leaving": leaving,
            "isolated": isolated,
        },
        st.integers(0, 12),
        _speeds,
        st.booleans(),
        st.sampled_from([False, False, True]),
    ),
    max_size=5,
).map(lambda rows: [holder(f"h{i}", **row) for i, row in enumerate(rows)])
_idle = st.lists(st.tuples(st.integers(0, SLOTS), _speeds, st.sampled_from([0, 150, 1000])), max_size=5).map(
    lambda rows: [idle(f"i{i}", slots, speed=s, free_tokens=t) for i, (slots, s, t) in enumerate(rows)]
)


def end_s(view, waiting):
    """When the last of so many that wait at a worker is done, all requests being alike."""
    return (waiting + view.slots) * 100 / view.speed


@given(_holders, _idle)
def test_only_what_waits_moves_and_only_as_much_as_is_taken_at_once(holders, places):
    found = counts(holders, places)
    by_name = {view.worker: view for view in holders}
    assert all(0 < count <= by_name[name].waiting for name, count in found.items())
    assert not any(by_name[name].isolated for name in found)
    assert sum(found.values()) <= sum(min(view.idle_slots, view.free_tokens // 100) for view in places)


@given(_holders, _idle)
def test_whatever_moves_gains(holders, places):
    found = counts(holders, places)
    soonest_s = min((SLOTS * 100 / view.speed for view in places), default=0.0)
    for view in holders:
        if view.worker in found and not view.leaving:
            last_taken = view.waiting - found[view.worker] + 1
            assert end_s(view, last_taken) > GAIN * soonest_s + MOVE_S


@given(_holders, _idle)
def test_once_it_has_moved_nothing_more_moves(holders, places):
    """So nothing goes to and fro, and a second look at the same things decides nothing new."""
    found = counts(holders, places)
    moved = sum(found.values())
    for at, view in enumerate(holders):
        left = view.waiting - found.get(view.worker, 0)
        fields = {"waiting": left, "in_hand": SLOTS + left, "tokens_in_hand": 100 * (SLOTS + left)}
        holders[at] = msgspec.structs.replace(view, **fields)
    for at, view in sorted(enumerate(places), key=lambda item: -item[1].speed):
        taken = min(moved, view.idle_slots, view.free_tokens // 100)
        moved -= taken
        places[at] = msgspec.structs.replace(
            view,
            idle_slots=view.idle_slots - taken,
            free_slots=view.free_slots - taken,
            free_tokens=view.free_tokens - 100 * taken,
        )
    assert counts(holders, places) == {}


@given(_holders, _idle)
def test_the_same_snapshot_has_the_same_decision(holders, places):
    assert counts(holders, places) == counts(holders[::-1], places[::-1])


# What is remembered


def beat(waiting, at_ms, session_id="s"):
    return Session(id=session_id, worker="w", epoch=1, state="ready", waiting=waiting, beat_ms=at_ms)


def noted(*beats):
    memory = BalanceMemory()
    for session in beats:
        memory.note([session])
    return memory.waits_for_long(beats[-1])


def test_a_queue_counts_once_a_second_beat_shows_it():
    assert not noted(beat(1, 5000))
    assert not noted(beat(1, 5000), beat(1, 5000))
    assert not noted(beat(1, 5000), beat(2, 5000 + HOLD_MS - 1))
    assert noted(beat(1, 5000), beat(2, 5000 + HOLD_MS))


def test_a_queue_that_was_gone_in_between_counts_anew():
    assert not noted(beat(1, 5000), beat(0, 6000), beat(1, 7000))
    assert not noted(beat(1, 5000), beat(1, 7000), beat(0, 8000))


def test_a_server_whose_clock_goes_back_is_believed_again_soon():
    assert noted(beat(1, 900_000), beat(1, 5000), beat(1, 5000 + HOLD_MS))


def test_who_was_asked_is_left_alone_for_a_while():
    memory = BalanceMemory()
    memory.note_order(Recall(session_id="s", worker="w", count=1), "m", 5000)
    memory.note([beat(0, 5000 + CALM_MS - 1)])
    assert (memory.asked_models, memory.asked_sessions) == ({"m"}, {"s"})
    memory.note([beat(0, 5000 + CALM_MS)])
    assert (memory.asked_models, memory.asked_sessions) == (set(), set())

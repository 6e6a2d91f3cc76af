from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.records import Session
from driver.balance_memory import CALM_MS, HOLD_MS, MAX_REST_MS, BalanceMemory
from driver.balancing import BEGUN_GAIN, GAIN, MOVE_S, REST, left_behind, recalls
from driver.snapshot import Recall
from tests.support.views import worker

SLOTS = 4


def holder(name="slow", waiting=2, **fields):
    """A worker whose slots are all in use; requests are of 100 tokens."""
    in_hand = SLOTS + waiting
    values = {"slots": SLOTS, "idle_slots": 0, "free_slots": 0, "in_hand": in_hand, "waiting": waiting, "speed": 4.0}
    return worker(name, **({"tokens_in_hand": 100 * in_hand} | values | fields))


def idle(name="fast", slots=SLOTS, **fields):
    return worker(name, **({"free_slots": slots, "slots": SLOTS, "speed": 40.0, "free_tokens": 10_000} | fields))


def counts(holders, places):
    return {recall.worker: recall.count for recall in recalls(holders, places)}


def test_what_waits_at_a_slow_worker_goes_to_one_that_has_nothing_to_do():
    (found,) = recalls([holder()], [idle()])
    assert found == Recall(session_id="session of slow", worker="slow", model="m", count=2)


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


def test_who_leaves_gives_all_that_waits_to_whoever_there_is():
    (found,) = left_behind([holder("leaving", leaving=True, speed=400.0)], [idle(slots=1, speed=1.0)])
    assert (found.worker, found.count, found.begun) == ("leaving", 2, False)


@pytest.mark.parametrize("others", [[], [idle(model="another")], [idle(isolated=True)]])
def test_who_leaves_keeps_what_nobody_else_could_run(others):
    assert left_behind([holder(leaving=True)], others) == ()


def test_who_stays_or_has_begun_all_leaves_nothing_behind():
    held = [holder(), holder(leaving=True, waiting=0), holder(leaving=True, isolated=True)]
    assert left_behind(held, [idle()]) == ()


def runner(name="slow", running=2, **fields):
    """A worker whose requests have all begun; `pace` is the speed of each."""
    values = {"in_hand": running, "running": running, "waiting": 0, "pace": 1.0}
    return holder(name, **({"tokens_in_hand": 100 * running} | values | fields))


def test_what_runs_moves_from_a_much_slower_worker():
    (found,) = recalls([runner()], [idle(is_proven=True)])
    assert (found.worker, found.count, found.begun) == ("slow", 2, True)


def test_what_runs_where_a_much_slower_worker_leaves_goes_too():
    leaving = runner(leaving=True, waiting=1, in_hand=3)
    (found,) = left_behind([leaving], [idle(idle_slots=0, is_proven=True)])
    assert (found.count, found.begun) == (3, True)
    (found,) = left_behind([leaving], [idle(idle_slots=0, speed=4.0, is_proven=True), idle("unseen")])
    assert (found.count, found.begun) == (1, False)


def test_what_waits_goes_before_what_runs():
    both = runner(waiting=1, in_hand=3, tokens_in_hand=300)
    assert [recall.begun for recall in recalls([both], [idle(slots=1, is_proven=True)])] == [False]
    (all_of_it,) = recalls([both], [idle(is_proven=True)])
    assert (all_of_it.count, all_of_it.begun) == (3, True)


@pytest.mark.parametrize(
    ("held", "place"),
    [
        ({"pace": 0.0}, {}),  # nobody has seen how slow it is
        ({}, {"is_proven": False}),  # it may be as slow, at work
        ({"pace": 6.0}, {}),  # less than twice as slow
        ({"isolated": True}, {}),
        ({"tokens_in_hand": 1}, {}),  # over in a moment
    ],
)
def test_what_runs_stays_where_it_would_not_clearly_end_sooner(held, place):
    assert recalls([runner(**held)], [idle(**({"is_proven": True} | place))]) == ()


def test_a_worker_short_of_memory_is_seen_to_run_few_at_once():
    few = holder(waiting=1, running=1, in_hand=2, tokens_in_hand=200)
    assert counts([few], [idle(speed=3.0)]) == {"slow": 1}
    assert counts([holder(waiting=1, running=SLOTS)], [idle(speed=3.0)]) == {}


def test_who_would_take_longest_is_relieved_first():
    assert counts([holder("slow"), holder("slower", speed=1.0)], [idle(slots=1)]) == {"slower": 1}


def test_suspects_stay_where_they_are():
    assert counts([holder(isolated=True)], [idle()]) == {}


def test_an_old_beat_takes_no_more_than_is_there():
    assert counts([holder(waiting=5, in_hand=2)], [idle()]) == {"slow": 2}


_speeds = st.sampled_from([1.0, 2.0, 4.0, 40.0])


def _holder(name, waiting, running, speed, pace, isolated):
    running = SLOTS if waiting else running
    fields = {"running": running, "in_hand": running + waiting, "tokens_in_hand": 100 * (running + waiting)}
    return holder(name, waiting, speed=speed, pace=pace, isolated=isolated, **fields)


_holders = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(0, SLOTS),
        _speeds,
        st.sampled_from([0.0, 0.2, 1.0, 10.0]),
        st.sampled_from([False, False, True]),
    ),
    max_size=5,
).map(lambda rows: [_holder(f"h{i}", *row) for i, row in enumerate(rows)])
_idle = st.lists(
    st.tuples(st.integers(0, SLOTS), _speeds, st.sampled_from([0, 150, 1000]), st.booleans()), max_size=5
).map(
    lambda rows: [
        idle(f"i{i}", slots, speed=s, free_tokens=t, is_proven=proven) for i, (slots, s, t, proven) in enumerate(rows)
    ]
)


def end_s(view, waiting):
    """When the last of so many that wait at a worker is done, all requests being alike."""
    return (waiting + SLOTS) / SLOTS * 100 * request_s_per_token(view)


def request_s_per_token(view):
    return 1 / view.pace if view.pace else SLOTS / view.speed


@given(_holders, _idle)
def test_only_as_much_moves_as_is_there_and_is_taken_at_once(holders, places):
    by_name = {view.worker: view for view in holders}
    found = recalls(holders, places)
    for recall in found:
        view = by_name[recall.worker]
        assert 0 < recall.count <= view.waiting + view.running
        assert recall.begun == (recall.count > view.waiting)
        assert not view.isolated
    room = sum(min(view.idle_slots, view.free_tokens // 100) for view in places)
    assert sum(recall.count for recall in found) <= room


@given(_holders, _idle)
def test_whatever_moves_gains(holders, places):
    by_name = {view.worker: view for view in holders}
    soonest_s = min((SLOTS * 100 / view.speed for view in places), default=0.0)
    for recall in recalls(holders, places):
        view = by_name[recall.worker]
        if recall.begun:
            assert 100 * REST / view.pace > BEGUN_GAIN * REST * soonest_s + MOVE_S
        else:
            assert end_s(view, view.waiting - recall.count + 1) > GAIN * soonest_s + MOVE_S


@given(_holders, _idle)
def test_once_it_has_moved_nothing_more_moves(holders, places):
    """So nothing goes to and fro, and a second look at the same things decides nothing new.

    All were seen at work: else what moves may come to one that was not, and leave its place to the next.
    """
    places = [msgspec.structs.replace(view, is_proven=True) for view in places]
    found = counts(holders, places)
    moved = sum(found.values())
    for at, view in enumerate(holders):
        left = view.waiting + view.running - found.get(view.worker, 0)
        running = min(left, view.running)
        fields = {"waiting": left - running, "running": running, "in_hand": left, "tokens_in_hand": 100 * left}
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


@given(_idle)
def test_equal_workers_keep_what_they_run(places):
    """However many requests each has: fewer of them only go faster."""
    speed = 4.0
    equals = [msgspec.structs.replace(view, speed=speed, is_proven=True) for view in places]
    held = [runner(f"r{n}", running=n, pace=speed / SLOTS * (1 + 1 / n)) for n in range(1, SLOTS + 1)]
    assert recalls(held, equals) == ()


@given(_holders, _idle)
def test_the_same_snapshot_has_the_same_decision(holders, places):
    assert counts(holders, places) == counts(holders[::-1], places[::-1])


# What is remembered


def beat(waiting, at_ms, session_id="s", **more):
    return Session(id=session_id, worker="w", epoch=1, state="ready", waiting=waiting, beat_ms=at_ms, **more)


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
    memory.note_order(Recall(session_id="s", worker="w", model="m", count=1), 5000)
    memory.note([beat(0, 5000 + CALM_MS - 1)])
    assert (memory.asked_models, memory.asked_sessions) == ({"m"}, {"s"})
    memory.note([beat(0, 5000 + CALM_MS)])
    assert (memory.asked_models, memory.asked_sessions) == (set(), set())


def orders(beats_s, *, gives=0, drain=0):
    """When a worker is asked, in seconds, that runs something all the time and gives back so many each time."""
    memory, asked_s, given_back = BalanceMemory(), [], 0
    for at_s in range(beats_s):
        session = beat(0, 1000 * at_s, running=1, drain=drain, given_back=given_back)
        memory.note([session])
        if not memory.asked_models and (memory.leaving([session]) if drain else memory.lasting([session])):
            memory.note_order(Recall(session_id="s", worker="w", model="m", count=1), 1000 * at_s)
            asked_s.append(at_s)
            given_back += gives
    return asked_s


@pytest.mark.parametrize("drain", [0, 1])
def test_who_gives_nothing_back_is_asked_ever_more_seldom(drain):
    asked_s = orders(400, drain=drain)
    pauses_s = [after - before for before, after in pairwise(asked_s)]
    calm_s, longest_s = CALM_MS / 1000, MAX_REST_MS / 1000
    assert pauses_s[:5] == [calm_s * (1 + 2**n) for n in range(4)] + [calm_s + 48]
    assert set(pauses_s[5:]) == {calm_s + longest_s}


def test_who_gives_back_is_asked_as_often_as_others():
    assert orders(30, gives=1) == list(range(0, 30, CALM_MS // 1000))


@pytest.mark.parametrize("interval_s", [2, 5])
def test_what_a_worker_gives_back_counts_also_where_it_beats_seldom(interval_s):
    memory, ordered, given_back, asked_s = BalanceMemory(interval_s), False, 0, []
    for at_s in range(interval_s * 30):
        if at_s % interval_s == interval_s - 1:
            seldom = beat(0, 1000 * at_s, running=1, given_back=given_back)
            given_back, ordered = given_back + ordered, False  # it reads the order with the answer to this beat
        elif at_s < interval_s:
            continue
        other = beat(0, 1000 * at_s, session_id="other")
        memory.note([seldom, other])
        if not memory.asked_models and memory.lasting([seldom]):
            memory.note_order(Recall(session_id="s", worker="w", model="m", count=1), 1000 * at_s)
            asked_s.append(at_s)
            ordered = True
    assert {after - before for before, after in pairwise(asked_s)} == {CALM_MS * interval_s // 1000}


def test_who_gave_something_back_is_asked_at_once_again():
    memory = BalanceMemory()
    for at_ms, given_back in ((0, 0), (3000, 0), (6000, 0), (9000, 1)):
        session = beat(0, at_ms, running=1, given_back=given_back)
        memory.note([session])
        if memory.lasting([session]):
            memory.note_order(Recall(session_id="s", worker="w", model="m", count=1), at_ms)
    assert memory.asked_sessions == {"s"}


def test_a_rest_is_forgotten_with_its_session_and_when_the_servers_clock_goes_back():
    memory = BalanceMemory()
    memory.note([beat(0, 50_000)])
    memory.note_order(Recall(session_id="s", worker="w", model="m", count=1), 50_000)
    memory.note([beat(0, 53_000)])
    assert memory.lasting([beat(0, 53_000, running=1)]) == []
    assert len(memory.lasting([beat(0, 1000, running=1)])) == 1
    memory.note([beat(0, 53_000, "another")])
    assert len(memory.lasting([beat(0, 53_000, running=1)])) == 1

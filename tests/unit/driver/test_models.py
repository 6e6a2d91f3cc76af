from collections import Counter
from math import ceil

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from driver.models import Serving, SwitchLimits, SwitchState, Waiting, decide_switches

LIMITS = SwitchLimits(models=frozenset("abc"), least_backlog_s=30, hold_s=5, stay_s=120)


def idle(name, model="a"):
    return Serving(worker=name, model=model, is_idle=True)


def busy(name, model="a"):
    return Serving(worker=name, model=model, is_idle=False)


def decide(backlogs, *rest, requests=1_000):
    """With so many requests in each backlog, which is given in tokens."""
    return decide_switches({m: Waiting(requests=requests if t else 0, tokens=t) for m, t in backlogs.items()}, *rest)


def moves_at(times, backlogs, workers, *, speed=100.0, limits=LIMITS):
    """What is asked at each time, as (time, worker, model), while nothing else changes."""
    state, found = SwitchState(), []
    for now_s in times:
        switches = decide(backlogs, workers, speed, state, limits, now_s)
        state = switches.state
        found += [(now_s, move.worker, move.model) for move in switches.moves]
    return found


def test_an_idle_worker_goes_to_a_model_that_nobody_serves():
    assert moves_at([0, 4, 5], {"b": 1}, [idle("w")]) == [(5, "w", "b")]


def test_a_short_backlog_of_a_served_model_moves_nobody():
    assert moves_at([0, 5, 50], {"b": 3_000}, [idle("w"), busy("v", "b")]) == []


def test_a_long_backlog_gets_as_many_as_make_it_short():
    workers = [idle("w1"), idle("w2"), idle("w3"), busy("v", "b")]
    assert moves_at([0, 5], {"b": 9_000}, workers) == [(5, "w1", "b"), (5, "w2", "b")]


def test_a_few_long_requests_need_no_more_workers_than_they_are():
    workers = [idle(f"w{place}") for place in range(5)]
    state = decide({"b": 10**6}, workers, 100.0, SwitchState(), LIMITS, 0, requests=2).state
    assert len(decide({"b": 10**6}, workers, 100.0, state, LIMITS, 5, requests=2).moves) == 2


def test_while_the_speed_is_unknown_one_is_enough():
    assert moves_at([0, 5], {"b": 10**9}, [idle("w1"), idle("w2")], speed=0.0) == [(5, "w1", "b")]


def test_a_worker_with_work_or_with_a_backlog_of_its_own_stays():
    assert moves_at([0, 5], {"b": 10**6}, [busy("w")]) == []
    assert moves_at([0, 5], {"a": 1, "b": 10**6}, [idle("w1"), idle("w2")]) == []


def test_a_worker_that_serves_something_else_is_left_alone():
    assert moves_at([0, 5], {"b": 10**6}, [idle("w", "dedicated")]) == []
    assert moves_at([0, 5], {"dedicated": 10**6}, [idle("w")]) == []
    assert moves_at([0, 5], {"b": 10**6}, [idle("w")], limits=SwitchLimits()) == []


def test_a_backlog_that_goes_away_in_time_moves_nobody():
    state = decide({"b": 1}, [idle("w")], 100.0, SwitchState(), LIMITS, 0).state
    state = decide({}, [idle("w")], 100.0, state, LIMITS, 4).state
    assert decide({"b": 1}, [idle("w")], 100.0, state, LIMITS, 6).moves == ()


def test_a_worker_that_was_asked_counts_as_moved_until_it_says_so():
    """It still says `a` while it loads; a second one is not asked for the same backlog."""
    assert moves_at([0, 5, 6, 60], {"b": 1}, [idle("w1"), idle("w2")]) == [(5, "w1", "b")]


def test_a_worker_that_did_not_move_is_asked_again_after_its_stay():
    assert moves_at([0, 5, 60, 125, 130], {"b": 1}, [idle("w")]) == [(5, "w", "b"), (130, "w", "b")]


def test_a_moved_worker_stays():
    state = decide({"b": 1}, [idle("w")], 100.0, SwitchState(), LIMITS, 0).state
    state = decide({"b": 1}, [idle("w")], 100.0, state, LIMITS, 5).state
    back = [idle("w", "b")]
    for now_s, expected in ((10, 0), (20, 0), (124, 0), (125, 1)):
        switches = decide({"a": 1}, back, 100.0, state, LIMITS, now_s)
        state = switches.state
        assert len(switches.moves) == expected


def test_the_model_with_the_most_workers_gives_first():
    workers = [idle("w1", "c"), idle("w2", "a"), idle("w3", "a")]
    assert moves_at([0, 5], {"b": 1}, workers) == [(5, "w2", "b")]


def test_who_has_been_short_for_longest_is_served_first():
    state = decide({"c": 1}, [idle("w")], 100.0, SwitchState(), LIMITS, 0).state
    state = decide({"c": 1, "b": 1}, [busy("w")], 100.0, state, LIMITS, 1).state
    (move,) = decide({"c": 1, "b": 1}, [idle("w")], 100.0, state, LIMITS, 9).moves
    assert move.model == "c"


# Properties: over any history of backlogs and of what workers do, where a worker that is asked does as it is told

MODELS = ("a", "b", "c", "d")  # d may not be switched
scenes = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(MODELS), st.sampled_from([0.0, 1.0, 5_000.0, 10**6])),
        st.lists(st.booleans(), min_size=6, max_size=6),
        st.floats(0.1, 90),
    ),
    min_size=1,
    max_size=30,
)
first_models = st.lists(st.sampled_from(MODELS), min_size=1, max_size=6)


def play(scenes_, models):
    """Each decision: backlogs, workers before, moves, and the time."""
    serving, state, now_s = list(models), SwitchState(), 0.0
    for backlogs, idles, pause_s in scenes_:
        now_s += pause_s
        workers = [Serving(worker=f"w{i}", model=m, is_idle=idles[i]) for i, m in enumerate(serving)]
        switches = decide(backlogs, workers, 100.0, state, LIMITS, now_s)
        state = switches.state
        yield backlogs, {worker.worker: worker for worker in workers}, switches.moves, now_s
        for move in switches.moves:
            serving[int(move.worker[1:])] = move.model


@given(scenes, first_models)
def test_only_idle_workers_without_a_backlog_move_and_only_where_they_may(scenes_, models):
    for backlogs, workers, moves, _ in play(scenes_, models):
        assert len({move.worker for move in moves}) == len(moves)
        for move in moves:
            worker = workers[move.worker]
            assert worker.is_idle
            assert worker.model != move.model
            assert {worker.model, move.model} <= LIMITS.models
            assert not backlogs.get(worker.model, 0) > 0
            assert backlogs[move.model] > 0


@given(scenes, first_models)
def test_a_model_with_a_backlog_never_loses_a_worker(scenes_, models):
    for backlogs, workers, moves, _ in play(scenes_, models):
        before = Counter(worker.model for worker in workers.values())
        after = before - Counter(workers[move.worker].model for move in moves)
        assert all(after[model] == before[model] for model, tokens in backlogs.items() if tokens > 0)


@given(scenes, first_models)
def test_a_worker_moves_at_most_once_in_its_stay(scenes_, models):
    last = {}
    for _, _, moves, now_s in play(scenes_, models):
        for move in moves:
            assert now_s - last.get(move.worker, -1e9) >= LIMITS.stay_s
            last[move.worker] = now_s


@given(scenes, first_models)
def test_no_model_gets_more_than_it_can_use(scenes_, models):
    for backlogs, workers, moves, _ in play(scenes_, models):
        before = Counter(worker.model for worker in workers.values())
        for model, added in Counter(move.model for move in moves).items():
            assert before[model] + added <= ceil(backlogs[model] / (100 * LIMITS.least_backlog_s))


@given(st.dictionaries(st.sampled_from(MODELS), st.sampled_from([0.0, 1.0, 5_000.0, 10**6])), first_models)
def test_a_load_that_stays_as_it_is_ends_in_peace(backlogs, models):
    scene = (backlogs, [True] * 6, 10.0)
    moves = [moves for _, _, moves, _ in play([scene] * 60, models)]
    assert not any(moves[30:])


def test_nothing_is_asked_of_nobody():
    assert decide({"a": 1}, [], 100.0, SwitchState(), LIMITS, 100).moves == ()
    assert msgspec.structs.asdict(SwitchState())["moves"] == ()

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.fair_queue import MEMORY_TOKENS, NEWCOMER_TOKENS, FairQueue
from driver.fairness import Fairness
from driver.turns import Turns
from tests.support.views import waiting

MODELS = ("", "m")


def wait(fairness, jobs, now_s=0.0):
    """These jobs wait, and no others."""
    names = {job.id for job in jobs}
    for name in set(fairness.waiting()) - names:
        fairness.leave(name)
    for job in jobs:
        fairness.enter(job, now_s)


def rank(fairness, jobs, now_s=0.0, models=MODELS):
    wait(fairness, jobs, now_s)
    return list(fairness.in_order(models, now_s))


def turns_of(fairness, jobs, now_s=0.0, models=MODELS):
    return Turns(fairness, rank(fairness, jobs, now_s, models), models, now_s)


def serve(fairness, jobs, batches, tokens=100, now_s=0.0, models=MODELS):
    """Give so many batches out, one a round, to jobs that always want more; who got them."""
    served = []
    for _ in range(batches):
        turns = turns_of(fairness, jobs, now_s, models)
        served.append(turns.next().id)
        turns.give(tokens)
    return served


def shares(served):
    return {name: count / len(served) for name, count in Counter(served).items()}


def order(jobs, fairness=None, now_s=0.0):
    return [job.id for job, _ in rank(fairness or Fairness(), jobs, now_s)]


def test_equal_jobs_get_turns():
    assert serve(Fairness(), [waiting("a"), waiting("b")], 4) == ["a", "b", "a", "b"]


def test_a_jobs_share_is_its_weight():
    found = shares(serve(Fairness(), [waiting("a", weight=3.0), waiting("b")], 400))
    assert found == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)


def test_users_share_equally_however_many_jobs_they_have():
    jobs = [waiting(f"a{i}", user="a") for i in range(9)] + [waiting("b", user="b")]
    assert shares(serve(Fairness(), jobs, 400))["b"] == pytest.approx(0.5, abs=0.01)


def test_a_users_weight_counts():
    jobs = [waiting("a", user="a"), waiting("b", user="b")]
    found = shares(serve(Fairness(user_weights={"a": 3.0}), jobs, 400))
    assert found == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)


def test_a_newcomer_is_served_at_once_and_does_not_make_up_for_what_was_before():
    fairness, old = Fairness(), waiting("old", created_ms=1)
    serve(fairness, [old], 1000)
    served = serve(fairness, [old, waiting("new", created_ms=2)], 40)
    assert served[0] == "new"
    assert shares(served)["new"] == pytest.approx(0.5, abs=0.05)


def test_a_stream_of_newcomers_does_not_starve_an_old_job():
    fairness, old = Fairness(), waiting("old")
    served = []
    for i in range(100):
        jobs = [old, *[waiting(f"new{n}", created_ms=n) for n in range(max(0, i - 20), i)]]
        jobs = [job for job in jobs if job.id == "old" or job.id not in served]
        served += serve(fairness, jobs, 1)
    assert served.count("old") >= 5


def test_an_absence_earns_no_credit():
    fairness, a, b = Fairness(), waiting("a"), waiting("b")
    serve(fairness, [a, b], 10)
    serve(fairness, [b], 1000)
    assert shares(serve(fairness, [a, b], 100))["a"] == pytest.approx(0.5, abs=0.05)


def test_what_a_job_could_not_use_is_forgotten_after_a_while():
    """It waits all the time, but for a while nobody can serve it."""
    fairness, a, b = Fairness(), waiting("a", model="n"), waiting("b")
    assert set(serve(fairness, [a, b], 3000)) == {"b"}
    assert serve(fairness, [a, b], 2000, models=("m", "n")).index("b") <= 2 * MEMORY_TOKENS / 100


def test_the_earliest_deadline_and_then_age_decide_between_newcomers():
    jobs = [
        waiting("young", created_ms=2),
        waiting("old", created_ms=1),
        waiting("late", created_ms=3, deadline_ms=9000),
        waiting("soon", created_ms=4, deadline_ms=5000),
    ]
    assert order(jobs) == ["soon", "late", "old", "young"]


def test_classes_come_in_order_and_their_users_in_turns():
    jobs = [
        waiting("low", priority=-10),
        waiting("a1", user="a", created_ms=1),
        waiting("a2", user="a", created_ms=2),
        waiting("b1", user="b", created_ms=3),
        waiting("high", priority=10),
    ]
    assert order(jobs) in (["high", "a1", "b1", "a2", "low"], ["high", "b1", "a1", "a2", "low"])


def test_a_lower_class_is_not_served_before_it_has_waited():
    jobs = [waiting("high", priority=10), waiting("low")]
    assert set(serve(Fairness(60.0), jobs, 50, now_s=0.0)) == {"high"}


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 20),
    st.floats(1.0, 100.0),
    st.lists(st.integers(-3, 0), min_size=1, max_size=4),
    st.integers(50, 300),
)
def test_nobody_waits_longer_than_the_bound(gap, ageing_s, rivals, tokens):
    """A job `gap` classes down is served within `gap` times `ageing_s`, and one round of the class that it rose to."""
    fairness = Fairness(ageing_s)
    low = waiting("low", priority=-gap)
    jobs = [low, waiting("top"), *[waiting(f"r{i}", priority=p) for i, p in enumerate(rivals)]]
    served_s = [0.0]
    step_s = ageing_s / 4
    for step in range(1, 8 * (gap + 3) + 1):
        now_s = step * step_s
        a_round = serve(fairness, jobs, len(jobs) + 1, tokens, now_s)
        served_s += [now_s] * a_round.count("low")
    waits = [after - before for before, after in itertools.pairwise(served_s)]
    assert waits
    assert max(waits) <= (gap + 1) * ageing_s + 2 * step_s


def test_nobody_rises_above_the_highest_class_that_waits():
    fairness = Fairness(1.0)
    jobs = [waiting("low", priority=-5), waiting("high", priority=3)]
    wait(fairness, jobs)
    assert [level for _, level in rank(fairness, jobs, 1000.0)] == [3, 3]


def test_who_was_served_falls_back():
    fairness = Fairness(1.0)
    low, high = waiting("low", priority=-5, user="u"), waiting("high", priority=3)
    wait(fairness, [low, high])
    assert [(job.id, level) for job, level in rank(fairness, [low, high], 1000.0)] == [("high", 3), ("low", 3)]
    fairness.served(low, 3, 1000.0)
    assert [(job.id, level) for job, level in rank(fairness, [low, high], 1000.0)] == [("high", 3), ("low", -5)]
    assert len(fairness.users(3)) == 1, "the lower job's user is no member of the class any more"


def test_who_was_served_last_of_those_that_rose_is_behind_the_others():
    fairness, top = Fairness(1.0), waiting("top", user="z")
    low = [waiting(name, user="u", priority=-1) for name in "ab"]
    wait(fairness, [*low, top])
    fairness.served(low[0], 0, 0.5)
    first = [job.id for job, _ in itertools.islice(fairness.in_order(MODELS, 2.0), 3)]
    assert first == ["top", "b", "a"]


def test_all_who_wait_slow_down_the_virtual_time_though_a_round_sees_few():
    fairness = Fairness()
    wait(fairness, [waiting(f"j{i}", user=f"u{i}") for i in range(100)])
    ranked = list(itertools.islice(fairness.in_order(MODELS, 0.0), 2))
    turns = Turns(fairness, ranked, MODELS, 0.0)
    turns.give(1000)
    fairness.enter(waiting("new", user="new"), 0.0)
    assert fairness.users(0).tag("new") == 1000 / 100 - NEWCOMER_TOKENS


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 10.0)), min_size=1, max_size=6),
    st.lists(st.integers(20, 200), min_size=1, max_size=5),
)
def test_shares_converge(rows, sizes):
    """Whatever the weights and the sizes of batches: users get equal parts, and jobs parts of those by weight."""
    jobs = [waiting(f"j{i}", user=user, weight=weight) for i, (user, weight) in enumerate(rows)]
    fairness, given_tokens, total = Fairness(), Counter(), 0
    for n in range(1500):
        turns = turns_of(fairness, jobs)
        tokens = sizes[n % len(sizes)]
        given_tokens[turns.next().id] += tokens
        turns.give(tokens)
        total += tokens
    users = {job.user for job in jobs}
    for job in jobs:
        own = sum(other.weight for other in jobs if other.user == job.user)
        part = total / len(users) * job.weight / own
        assert given_tokens[job.id] == pytest.approx(part, abs=200 * (len(jobs) + 2) * max(1.0, job.weight))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 1)), max_size=8))
def test_everybody_gets_a_turn_until_they_leave(rows):
    jobs = [waiting(f"j{i}", user=user, priority=priority) for i, (user, priority) in enumerate(rows)]
    turns = turns_of(Fairness(), jobs)
    seen = []
    while (job := turns.next()) is not None:
        seen.append(job)
        turns.leave()
    assert {job.id for job in seen} == {job.id for job in jobs}
    assert [job.priority for job in seen] == sorted((job.priority for job in seen), reverse=True)
    assert turns.next() is None


def test_what_is_over_is_forgotten():
    fairness = Fairness(1.0)
    always = [waiting("always", user="other"), waiting("top", user="other", priority=5)]
    for i in range(300):
        serve(fairness, [waiting(f"j{i}", user=f"u{i}"), *always], 2, now_s=20.0 * i)
        serve(fairness, [waiting(f"j{i}", user=f"u{i}"), *always], 2, now_s=20.0 * i + 10)
    sizes = [len(vars(fairness)[name]) for name in ("_users", "_jobs", "_risen", "_waiting", "_deadlines")]
    assert max(sizes) < 20
    assert len(fairness.users(0)._tags) < 20
    wait(fairness, [])
    rank(fairness, [])
    assert not any(vars(fairness)[name] for name in ("_users", "_jobs", "_risen", "_waiting", "_lines"))


def test_who_leaves_ahead_of_its_share_is_ahead_when_it_comes_back():
    queue = FairQueue()
    for name in "ab":
        queue.enter(name)
    queue.charge("a", 1000, 1.0, 2.0)
    queue.leave("a")
    queue.enter("a")
    assert queue.tag("a") > queue.tag("b")
    queue.leave("a")
    queue.charge("b", 2000, 1.0, 1.0)
    queue.enter("a")
    assert queue.tag("a") == 500 + 2000 - NEWCOMER_TOKENS, "it is a newcomer again"


# However many wait


def test_a_round_looks_only_at_the_front():
    fairness = Fairness()
    jobs = [waiting(f"j{i}", user=f"u{i % 7}", created_ms=i) for i in range(500)]
    wait(fairness, jobs)
    first = [job.id for job, _ in itertools.islice(fairness.in_order(MODELS, 0.0), 10)]
    assert first == order(jobs)[:10]
    assert set(first[:7]) == {f"j{i}" for i in range(7)}


def test_only_what_is_served_is_seen_and_counted():
    fairness = Fairness()
    jobs = [waiting("a"), waiting("b", model="n"), waiting("c", model="", user="x")]
    assert [job.id for job, _ in rank(fairness, jobs, models=("", "n"))] in (["b", "c"], ["c", "b"])
    assert (fairness.count(("", "n")), fairness.count(("m",)), fairness.count(())) == (2, 1, 0)


def test_an_aged_job_of_everybody_is_seen_however_many_one_user_has():
    fairness = Fairness(1.0)
    many = [waiting(f"a{i}", user="a", priority=-1) for i in range(200)]
    wait(fairness, [*many, waiting("top", user="c")])
    wait(fairness, jobs := [*many, waiting("top", user="c"), waiting("b", user="b", priority=-1)], 0.1)
    first = [job.id for job, _ in itertools.islice(fairness.in_order(MODELS, 2.0), 3)]
    assert set(first) == {"top", "a0", "b"}
    assert len(rank(fairness, jobs, 2.0)) == len(jobs)


def test_jobs_with_deadlines_come_by_them_with_their_classes():
    fairness = Fairness(1.0)
    jobs = [waiting("a", deadline_ms=9), waiting("b", deadline_ms=5, priority=-2), waiting("c", priority=3)]
    wait(fairness, jobs)
    assert [(job.id, level) for job, level in fairness.by_deadline(0.0)] == [("b", -2), ("a", 0)]
    assert [(job.id, level) for job, level in fairness.by_deadline(2.5)] == [("b", 0), ("a", 0)]
    fairness.leave("b")
    assert [job.id for job, _ in fairness.by_deadline(0.0)] == ["a"]


def test_a_clock_that_was_set_back_lets_no_job_fall():
    fairness = Fairness(1.0)
    wait(fairness, [waiting("a", deadline_ms=9), waiting("c", priority=3)], 100.0)
    assert [(job.id, level) for job, level in fairness.by_deadline(10.0)] == [("a", 0)]
    assert [(job.id, level) for job, level in fairness.in_order(MODELS, 10.0)] == [("c", 3), ("a", 0)]


_rows = st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.sampled_from(["", "m", "n"]), st.integers(0, 50))


@settings(deadline=None, max_examples=60)
@given(st.lists(_rows, max_size=12), st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), max_size=12), st.data())
def test_the_order_is_kept_as_it_would_be_found_anew(rows, happens, data):
    """After any arrivals, services and departures: the same order as if it was sorted from all that wait."""
    fairness, now_s, here = Fairness(10.0), 0.0, {}
    jobs = [waiting(f"j{i}", user=u, priority=p, model=m, created_ms=c) for i, (u, p, m, c) in enumerate(rows)]
    for place, kind in [*((i, 0) for i in range(len(jobs))), *happens]:
        now_s += data.draw(st.sampled_from([0.0, 3.0, 25.0]))
        job = jobs[place % len(jobs)] if jobs else None
        if job is None:
            continue
        if kind == 1:
            fairness.leave(job.id)
            here.pop(job.id, None)
        elif kind == 0:
            fairness.enter(job, now_s)
            here[job.id] = now_s
        elif here:
            turns = turns_of(fairness, [other for other in jobs if other.id in here], now_s, ("", "m", "n"))
            given = turns.next()
            turns.give(100)
            here[given.id] = now_s
        check_order(fairness, [other for other in jobs if other.id in here], here, now_s)


def check_order(fairness, jobs, since_s, now_s):
    found = list(fairness.in_order(("", "m"), now_s))
    assert sorted(job.id for job, _ in found) == sorted(job.id for job in jobs if job.model in ("", "m"))
    classes = {job.priority for job in jobs}
    for job, level in found:
        risen = int((now_s - since_s[job.id]) / fairness.ageing_s)
        assert level == max(p for p in classes if p <= max(job.priority, job.priority + risen))
    assert [level for _, level in found] == sorted((level for _, level in found), reverse=True)
    for level in classes:
        own = [job for job, at in found if at == level == job.priority]
        firsts = {}
        for job in own:
            firsts.setdefault(job.user, []).append(fairness.jobs(level, job.user).tag(job.id))
        for tags in firsts.values():
            assert tags == sorted(tags)
        users = [fairness.users(level).tag(user) for user in firsts]
        assert users == sorted(users)

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.fairness import MEMORY_TOKENS, Fairness, Turns
from tests.support.views import waiting


def serve(fairness, jobs, batches, tokens=100, now_s=0.0):
    """Give so many batches out, one a round, to jobs that always want more; who got them."""
    served = []
    for _ in range(batches):
        turns = Turns(fairness, fairness.rank(jobs, now_s), now_s)
        served.append(turns.next().id)
        turns.give(tokens)
    return served


def shares(served):
    return {name: count / len(served) for name, count in Counter(served).items()}


def order(jobs, fairness=None, now_s=0.0):
    return [job.id for job, _ in (fairness or Fairness()).rank(jobs, now_s)]


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
    fairness, a, b = Fairness(), waiting("a"), waiting("b")
    for _ in range(3000):
        ranked = [(job, level) for job, level in fairness.rank([a, b], 0.0) if job.id == "b"]
        turns = Turns(fairness, ranked, 0.0)
        turns.next()
        turns.give(100)
    assert serve(fairness, [a, b], 2000).index("b") <= 2 * MEMORY_TOKENS / 100


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
    fairness.rank(jobs, 0.0)
    assert [level for _, level in fairness.rank(jobs, 1000.0)] == [3, 3]


def test_who_was_served_falls_back():
    fairness = Fairness(1.0)
    low, high = waiting("low", priority=-5), waiting("high", priority=3)
    fairness.rank([low, high], 0.0)
    fairness.serve("low", 1000.0)
    assert [(job.id, level) for job, level in fairness.rank([low, high], 1000.0)] == [("high", 3), ("low", -5)]


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
        turns = Turns(fairness, fairness.rank(jobs, 0.0), 0.0)
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
    turns = Turns(fairness := Fairness(), fairness.rank(jobs, 0.0), 0.0)
    seen = []
    while (job := turns.next()) is not None:
        seen.append(job)
        turns.leave()
    assert {job.id for job in seen} == {job.id for job in jobs}
    assert [job.priority for job in seen] == sorted((job.priority for job in seen), reverse=True)
    assert turns.next() is None


def test_what_is_over_is_forgotten():
    fairness = Fairness()
    for i in range(1000):
        serve(fairness, [waiting(f"j{i}", user=f"u{i}"), waiting("always", user="other")], 2)
    assert len(fairness.users(0)._tags) < 20
    assert len(fairness._jobs) < 20
    fairness.rank([], 0.0)
    assert not fairness._jobs
    assert not fairness._users

import pytest

from broker.records import JobFront
from driver.estimates import ENOUGH, Lengths
from driver.lateness import CERTAINTY, MOST, certainly_late
from tests.support.views import job, waiting

MEAN = 100.0


def known_lengths():
    lengths = Lengths()
    lengths.note("another", "m", JobFront(answered=ENOUGH, output_tokens=int(MEAN * ENOUGH)))
    return lengths


def late(jobs, ahead=(), *, tokens_per_s=100.0, request_tokens_per_s=10.0, known=True):
    lengths = known_lengths() if known else Lengths()
    found = certainly_late(
        sorted(((item, item.priority) for item in jobs if item.deadline_ms), key=lambda row: row[0].deadline_ms),
        ahead,
        lengths,
        tokens_per_s=tokens_per_s,
        request_tokens_per_s=request_tokens_per_s,
        now_ms=0,
    )
    return [item.job_id for item in found]


def due(seconds, **fields):
    return waiting("j", deadline_ms=int(seconds * 1000), **fields)


def test_a_request_that_takes_far_longer_than_is_left_is_late():
    """It takes 10 s; four times as fast is still 2.5 s."""
    assert late([due(10 / CERTAINTY - 0.1)]) == ["j"]
    assert late([due(10 / CERTAINTY + 0.1)]) == []


def test_what_comes_before_counts():
    """1,000 tokens of a higher class at 100 tokens per second."""
    higher = job("higher", 1, backlog=100, priority=5)
    assert late([due(4.9)], [higher]) == ["j"]
    assert late([due(5.1)], [higher]) == []


def test_what_is_of_the_same_class_or_a_lower_one_does_not():
    ahead = [job("same", 1, backlog=10_000), job("lower", 1, backlog=10_000, priority=-5)]
    assert late([due(3)], ahead) == []


def test_without_a_deadline_nobody_is_late():
    assert late([waiting("j")], [job("higher", 1, backlog=10**9, priority=5)]) == []


def test_a_deadline_that_has_passed_is_not_ours_to_tell():
    assert late([due(-1)]) == []


def test_while_nothing_is_measured_nothing_is_certain():
    assert late([due(0.1)], request_tokens_per_s=0.0) == []
    assert late([due(0.1)], tokens_per_s=0.0) == []
    assert late([due(0.1)], known=False) == []


def test_the_earliest_come_first_and_no_more_are_looked_at_than_may_be_late():
    def by_deadline():
        yield waiting("passed", deadline_ms=-5), 0
        yield waiting("a", deadline_ms=1000), 0
        yield waiting("high", deadline_ms=2000), 9
        yield waiting("b", deadline_ms=4000), 0
        yield waiting("c", deadline_ms=5001), 0
        pytest.fail("all that follow have time enough")

    found = certainly_late(
        by_deadline(),
        [job("higher", 1, backlog=200, priority=5)],
        known_lengths(),
        tokens_per_s=200.0,
        request_tokens_per_s=10.0,
        now_ms=0,
    )
    assert [item.job_id for item in found] == ["a", "high", "b"]


def test_of_many_that_are_late_some_are_left_for_the_next_round():
    found = certainly_late(
        [(waiting(f"j{i}", deadline_ms=1), 0) for i in range(2 * MOST)],
        [],
        known_lengths(),
        tokens_per_s=100.0,
        request_tokens_per_s=10.0,
        now_ms=0,
    )
    assert len(found) == MOST


def test_the_reason_says_what_takes_so_long():
    lengths = Lengths()
    (found,) = certainly_late(
        [(due(1.0), 0)],
        [job("higher", 1, backlog=1000, priority=5)],
        lengths,
        tokens_per_s=100.0,
        request_tokens_per_s=10.0,
        now_ms=0,
    )
    assert "in 1.0 s cannot be met" in found.reason
    assert "100.0 s" in found.reason

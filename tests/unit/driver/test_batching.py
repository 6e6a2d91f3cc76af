from hypothesis import given
from hypothesis import strategies as st

from broker.records import PendingRequest
from driver.batching import LOOKAHEAD, Front
from tests.support.views import job


def requests(*costs, prefixes=()):
    marks = [*prefixes, *[0] * len(costs)]
    return tuple(PendingRequest(index=i, cost=cost, prefix=marks[i]) for i, cost in enumerate(costs))


def front(*costs, prefixes=(), more=1000, **fields):
    """The visible part of a long job, whose end is not in sight."""
    return Front(job(requests=requests(*costs, prefixes=prefixes), backlog=len(costs) + more, **fields))


def taken(visible, max_requests, max_tokens):
    return [request.index for request in visible.take(max_requests, max_tokens).requests]


def test_the_first_requests_that_fit_are_taken():
    assert taken(front(10, 10, 10), 2, 100) == [0, 1]
    assert taken(front(10, 10, 10), 9, 20) == [0, 1]


def test_the_budget_may_be_used_up_to_the_last_token():
    assert taken(front(10, 11), 9, 21) == [0, 1]
    assert taken(front(10, 11), 9, 20) == [0]


def test_a_request_above_the_budget_goes_alone():
    assert taken(front(50, 1), 9, 10) == [0]


def test_what_was_taken_is_gone():
    visible = front(10, 10, 10)
    assert taken(visible, 2, 100) == [0, 1]
    assert taken(visible, 2, 100) == [2]
    assert visible.is_empty


def test_similar_lengths_travel_together():
    visible = front(10, 900, 12, 800, 15)
    assert taken(visible, 3, 9999) == [0, 2, 4]
    assert taken(visible, 3, 9999) == [1, 3]


def test_who_is_like_nobody_fills_up_the_batch():
    assert taken(front(10, 900, 70, 12), 4, 9999) == [0, 3, 2, 1]


def test_prompts_that_begin_alike_travel_together():
    assert taken(front(10, 10, 900, 10, prefixes=[5, 6, 5, 6]), 2, 9999) == [0, 2]


def test_the_next_in_line_is_never_passed_over():
    visible = front(900, *[10] * 50)
    assert taken(visible, 3, 9999)[0] == 0


def test_at_the_end_of_a_job_the_longest_go_first():
    assert taken(front(10, 900, 50, more=0), 1, 9999) == [1]


def test_a_long_prompt_does_not_make_a_long_text():
    texts = (PendingRequest(index=i, cost=prompt + 20, prompt_tokens=prompt) for i, prompt in enumerate((5, 60, 7)))
    long_text = PendingRequest(index=3, cost=100, prompt_tokens=1)
    visible = Front(job(requests=(*texts, long_text)))
    assert [taken(visible, 1, 9999) for _ in range(4)] == [[3], [0], [1], [2]]


def test_suspects_are_left_out():
    suspect = PendingRequest(index=0, cost=1, attempts=1)
    assert taken(Front(job(requests=(suspect, *requests(1, 1)[1:]))), 9, 99) == [1]
    assert Front(job(requests=(suspect,))).is_empty


def test_learned_lengths_count():
    batch = Front(job(requests=(PendingRequest(index=0, cost=110, prompt_tokens=10),), mean_output=20.0)).take(1, 999)
    assert batch.expected == (41,)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0, 1, 2])), min_size=1, max_size=2 * LOOKAHEAD),
    st.integers(1, 60),
    st.integers(1, 2000),
    st.sampled_from([0, 1000]),
)
def test_every_request_is_in_one_batch_within_the_budget(rows, max_requests, max_tokens, more):
    visible = front(*[cost for cost, _ in rows], prefixes=[prefix for _, prefix in rows], more=more)
    seen = []
    while not visible.is_empty:
        batch = visible.take(max_requests, max_tokens)
        assert 0 < len(batch.requests) <= max_requests
        assert len(batch.requests) == 1 or batch.tokens <= max_tokens
        if more:
            # Whoever waited longest goes now.
            assert batch.requests[0].index == min(set(range(len(rows))) - set(seen))
        seen += [request.index for request in batch.requests]
    assert sorted(seen) == list(range(len(rows)))

from hypothesis import given
from hypothesis import strategies as st

from broker.records import PendingRequest
from driver.batching import take_batch


def requests(*costs):
    return [PendingRequest(index=index, cost=cost) for index, cost in enumerate(costs)]


def taken(costs, max_requests, max_tokens):
    return [request.index for request in take_batch(requests(*costs), max_requests, max_tokens)]


def test_the_first_requests_that_fit_are_taken():
    assert taken([10, 10, 10], 2, 100) == [0, 1]
    assert taken([10, 10, 10], 9, 20) == [0, 1]


def test_the_budget_may_be_used_up_to_the_last_token():
    assert taken([10, 11], 9, 21) == [0, 1]
    assert taken([10, 11], 9, 20) == [0]


def test_a_request_above_the_budget_goes_alone():
    assert taken([50, 1], 9, 10) == [0]


def test_nobody_overtakes():
    assert taken([10, 50, 1], 9, 20) == [0]


def test_nothing_pending_is_nothing_taken():
    assert taken([], 9, 100) == []


@given(st.lists(st.integers(1, 100), max_size=50), st.integers(1, 60), st.integers(1, 500))
def test_a_batch_is_the_front_of_the_queue_within_the_budget(costs, max_requests, max_tokens):
    queue = requests(*costs)
    batch = take_batch(queue, max_requests, max_tokens)
    assert list(batch) == queue[: len(batch)]
    assert len(batch) <= max_requests
    assert len(batch) == 1 or sum(request.cost for request in batch) <= max_tokens
    assert bool(batch) == bool(queue)
    # No larger one would fit.
    if 0 < len(batch) < min(len(queue), max_requests):
        assert sum(request.cost for request in queue[: len(batch) + 1]) > max_tokens

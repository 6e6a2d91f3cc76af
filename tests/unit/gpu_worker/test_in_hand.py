import pytest

from gpu_worker.in_hand import InHand
from tests.support.racing import race


@pytest.fixture
def in_hand():
    return InHand()


def woken(ticket):
    """Whether the ticket's batch has been made to look around."""
    return not ticket.inbox._queue.empty()


def test_a_batch_is_taken_once_until_it_is_dropped(in_hand):
    ticket = in_hand.take("b", "j")
    assert (ticket.batch_id, ticket.job_id) == ("b", "j")
    assert in_hand.take("b", "j") is None
    in_hand.drop(ticket)
    assert in_hand.take("b", "j") is not None


def test_dropping_twice_is_harmless(in_hand):
    ticket = in_hand.take("b", "j")
    in_hand.drop(ticket)
    in_hand.drop(ticket)
    assert len(in_hand) == 0


def test_of_many_that_take_it_at_once_one_gets_it(in_hand):
    tickets = race(*[lambda: in_hand.take("b", "j")] * 8)
    assert sum(ticket is not None for ticket in tickets) == 1


def test_each_job_is_listed_once(in_hand):
    for batch, job in (("b1", "j2"), ("b2", "j1"), ("b3", "j2")):
        in_hand.take(batch, job)
    assert in_hand.job_ids() == ["j1", "j2"]


def test_only_batches_of_the_cancelled_jobs_are_told(in_hand):
    one, other = in_hand.take("b1", "j1"), in_hand.take("b2", "j2")
    in_hand.cancel_jobs({"j1", "unknown"})
    assert (one.cancelled, other.cancelled) == (True, False)
    assert (woken(one), woken(other)) == (True, False)


def test_a_cancelled_batch_is_told_once(in_hand):
    ticket = in_hand.take("b1", "j1")
    in_hand.cancel_jobs({"j1"})
    ticket.inbox.take(0)
    in_hand.cancel_jobs({"j1"})
    assert not woken(ticket)


def test_all_can_be_woken(in_hand):
    tickets = [in_hand.take("b1", "j1"), in_hand.take("b2", "j2")]
    in_hand.wake_all()
    assert all(woken(ticket) for ticket in tickets)
    assert not any(ticket.cancelled for ticket in tickets)

import pytest

from broker.messages import WorkerState
from broker.records import PendingRequest, Session, WaitingJob
from driver.detector import DetectorLimits
from driver.observe import SUSPECT_WINDOW, observe, worker_views
from tests.support.views import worker


def session(**fields):
    values = {"id": "s", "worker": "w", "epoch": 1, "state": "ready", "model": "m"}
    room = {"slots": 8, "kv_tokens": 1000, "max_batches": 4}
    return Session(**{**values, **room, **fields})


def views(*sessions):
    return worker_views(sessions, DetectorLimits())


def job(name, model="m"):
    return WaitingJob(id=name, model=model)


class FakeQueries:
    """Answers from a table, and remembers what was asked."""

    def __init__(self, **counts):
        self._counts = counts
        self.asked = []

    def pending_of(self, job_ids, limit):
        self.asked += [(job_id, limit) for job_id in job_ids]
        return [
            tuple(PendingRequest(index=index, cost=1) for index in range(min(limit, self._counts.get(job_id, 0))))
            for job_id in job_ids
        ]


def observed(queries, jobs, workers):
    snapshot = observe(queries, jobs, tuple(workers))
    return {view.id: len(view.pending) for view in snapshot.jobs}


# Workers


def test_the_room_is_capacity_and_a_window_less_what_is_in_hand():
    (view,) = views(session(inhand_requests=3, inhand_tokens=100, batches=1))
    assert (view.free_slots, view.free_tokens, view.free_batches) == (8 + 2 - 3, 1250 - 100, 3)
    assert (view.session_id, view.worker, view.model, view.in_hand, view.isolated) == ("s", "w", "m", 3, False)


def test_the_window_is_one_request_at_least():
    (view,) = views(session(slots=1))
    assert view.free_slots == 2


def test_a_worker_with_suspects_is_isolated():
    (view,) = views(session(isolated=1))
    assert view.isolated


@pytest.mark.parametrize("state", [state for state in WorkerState if state != "ready"])
def test_only_the_ready_get_work(state):
    assert views(session(state=state)) == ()


@pytest.mark.parametrize(
    "trouble", [{"drain": 1}, {"beat_age_s": 4.0}, {"beat_age_s": 40.0}, {"running": 1, "stalled_s": 100.0}]
)
def test_those_in_trouble_get_none(trouble):
    assert views(session(**trouble)) == ()


def test_what_a_worker_holds_too_much_is_room_below_zero():
    (view,) = views(session(inhand_requests=30))
    assert view.free_slots < 0
    assert not view.has_room


# Jobs


def test_jobs_come_in_their_order_with_what_they_have_pending():
    assert observed(FakeQueries(a=3, b=2), [job("a"), job("b")], [worker(free_slots=20)]) == {"a": 3, "b": 2}


def test_a_job_with_nothing_pending_is_left_out():
    assert observed(FakeQueries(b=1), [job("a"), job("b")], [worker()]) == {"b": 1}


def test_no_more_is_read_than_there_is_room_for():
    queries = FakeQueries(a=5000, b=5)
    assert observed(queries, [job("a"), job("b")], [worker(free_slots=8)]) == {"a": 8 + SUSPECT_WINDOW}
    assert queries.asked == [("a", 8 + SUSPECT_WINDOW)]


def test_a_job_that_nobody_serves_is_not_even_asked_for():
    queries = FakeQueries(a=100, b=5)
    jobs = [job("a", model="other"), job("b")]
    assert observed(queries, jobs, [worker(free_slots=8)]) == {"b": 5}
    assert [job_id for job_id, _ in queries.asked] == ["b"]


def test_a_job_for_any_model_is_served_by_all():
    assert observed(FakeQueries(a=5), [job("a", model="")], [worker(free_slots=8)]) == {"a": 5}
    assert observed(FakeQueries(a=5), [job("a", model="")], []) == {}


def test_many_small_jobs_are_read_a_page_at_a_time_until_there_is_no_room():
    names = [f"j{i}" for i in range(1000)]
    queries = FakeQueries(**dict.fromkeys(names, 1))
    found = observed(queries, [job(name) for name in names], [worker(free_slots=40)])
    assert list(found)[:40] == names[:40]
    assert 40 <= len(queries.asked) <= 40 + 64


def test_without_room_nothing_is_read():
    queries = FakeQueries(a=5)
    assert observed(queries, [job("a")], [worker(free_slots=0)]) == {}
    assert queries.asked == []


def test_one_overfull_worker_does_not_hide_the_room_of_another():
    workers = [worker("a", free_slots=-50), worker("b", free_slots=8)]
    assert observed(FakeQueries(a=5), [job("a")], workers) == {"a": 5}

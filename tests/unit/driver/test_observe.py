import pytest

from broker.records import JobFront, PendingRequest, Session
from broker.states import WorkerState
from driver.batching import LOOKAHEAD
from driver.detector import DetectorLimits
from driver.estimates import Lengths, WorkerSpeeds
from driver.observe import MAX_PAGE, SUSPECT_WINDOW, observe, worker_views
from tests.support.views import waiting, worker


def session(**fields):
    values = {"id": "s", "worker": "w", "epoch": 1, "state": "ready", "model": "m"}
    room = {"slots": 8, "kv_tokens": 1000, "max_batches": 4}
    return Session(**{**values, **room, **fields})


def views(*sessions):
    return worker_views(sessions, DetectorLimits(), WorkerSpeeds())


def job(name, model="m"):
    return waiting(name, model=model)


class FakeLedger:
    """Answers from a table, and remembers what was asked. The first `suspects` of each job are suspects."""

    def __init__(self, suspects=0, **counts):
        self._counts = counts
        self._suspects = suspects
        self.asked = []

    def fronts(self, job_ids, limit):
        self.asked += [(job_id, limit) for job_id in job_ids]
        return [self._front(self._counts.get(job_id, 0), limit) for job_id in job_ids]

    def _front(self, count, limit):
        shown = tuple(
            PendingRequest(index=i, cost=1, attempts=int(i < self._suspects)) for i in range(min(limit, count))
        )
        return JobFront(pending=shown, backlog=count, answered=20, output_tokens=100)


def look(ledger, jobs, workers):
    jobs = [(item, 0) for item in jobs]
    return observe(ledger, jobs, len(jobs), tuple(workers), Lengths())


def observed(ledger, jobs, workers):
    return {view.id: len(view.pending) for view in look(ledger, jobs, workers).jobs}


# Workers


def test_the_room_is_capacity_and_a_window_less_what_is_in_hand():
    (view,) = views(session(inhand_requests=3, inhand_tokens=100, batches=1))
    assert (view.free_slots, view.free_tokens, view.free_batches) == (8 + 2 - 3, 1250 - 100, 3)
    assert (view.session_id, view.worker, view.model, view.in_hand, view.isolated) == ("s", "w", "m", 3, False)
    assert (view.idle_slots, view.slots, view.window, view.tokens_in_hand) == (5, 8, 2, 100)


def test_the_window_is_one_request_at_least():
    (view,) = views(session(slots=1))
    assert view.free_slots == 2


def test_a_slot_is_not_idle_where_no_memory_is_left_to_run_it():
    (view,) = views(session(inhand_requests=3, inhand_tokens=1000))
    assert (view.idle_slots, view.free_slots) == (0, 7)


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
    assert observed(FakeLedger(a=3, b=2), [job("a"), job("b")], [worker(free_slots=20)]) == {"a": 3, "b": 2}


def test_a_job_comes_with_where_it_stands():
    snapshot = observe(FakeLedger(a=5000), [(job("a"), 7)], 1, (worker(),), Lengths())
    (view,) = snapshot.jobs
    assert (view.level, view.backlog, view.mean_output) == (7, 5000, 5.0)


def test_a_job_with_nothing_pending_is_left_out():
    assert observed(FakeLedger(b=1), [job("a"), job("b")], [worker()]) == {"b": 1}


def test_of_one_job_not_much_more_is_read_than_there_is_room_for():
    ledger = FakeLedger(a=50_000)
    assert observed(ledger, [job("a")], [worker(free_slots=8)]) == {"a": LOOKAHEAD}
    assert observed(ledger, [job("a")], [worker(free_slots=400)]) == {"a": 800}
    assert [limit for _, limit in ledger.asked] == [LOOKAHEAD, 800]


def test_jobs_that_share_the_room_are_read_by_their_share():
    names = list("abcdefghij")
    ledger = FakeLedger(**dict.fromkeys(names, 5000))
    assert set(observed(ledger, map(job, names), [worker(free_slots=1000)]).values()) == {200}


def test_a_front_of_suspects_is_looked_past():
    ledger = FakeLedger(suspects=200, a=500)
    assert observed(ledger, [job("a")], [worker()]) == {"a": LOOKAHEAD + SUSPECT_WINDOW}


def test_many_small_jobs_are_read_a_page_at_a_time_until_there_is_no_room():
    names = [f"j{i}" for i in range(1000)]
    ledger = FakeLedger(**dict.fromkeys(names, 1))
    snapshot = look(ledger, [job(name) for name in names], [worker(free_slots=MAX_PAGE + 1, free_batches=999)])
    assert [view.id for view in snapshot.jobs] == names[: 2 * MAX_PAGE]
    assert snapshot.more_jobs
    assert not look(ledger, [job("j0")], [worker()]).more_jobs


def test_no_more_jobs_are_read_than_there_is_room_for_batches():
    names = [f"j{i}" for i in range(1000)]
    workers = [worker(free_slots=500, free_batches=MAX_PAGE + 6), worker("full", free_slots=0, free_batches=99)]
    assert len(observed(FakeLedger(**dict.fromkeys(names, 1)), map(job, names), workers)) == MAX_PAGE + 6


def test_jobs_that_have_nothing_left_take_no_room():
    names = [f"j{i}" for i in range(1000)]
    ledger = FakeLedger(**dict.fromkeys(names[500:], 1))
    assert list(observed(ledger, map(job, names), [worker(free_slots=1)])) == names[500 : 500 + 12]


def test_without_room_nothing_is_read():
    ledger = FakeLedger(a=5)
    assert observed(ledger, [job("a")], [worker(free_slots=0)]) == {}
    assert ledger.asked == []


def test_one_overfull_worker_does_not_hide_the_room_of_another():
    workers = [worker("a", free_slots=-50), worker("b", free_slots=8)]
    assert observed(FakeLedger(a=5), [job("a")], workers) == {"a": 5}

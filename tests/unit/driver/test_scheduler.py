from hypothesis import given

from broker.records import PendingRequest
from driver.estimates import expected_tokens
from driver.fairness import Fairness
from driver.placement import Memory
from driver.scheduler import BatchLimits, schedule
from tests.support import views
from tests.support.views import job, pending, snapshot, worker

LIMITS = BatchLimits(requests=32, tokens=16_384)


def scheduled(snap, limits=LIMITS):
    """The decisions of a driver that remembers nothing."""
    return schedule(snap, Fairness(), Memory(), limits, 0.0)


def decided(jobs, workers, limits=LIMITS):
    return [(a.worker, a.job_id, a.indices) for a in scheduled(snapshot(jobs, workers), limits)]


def test_a_job_goes_to_the_worker_that_is_there():
    assert decided([job(count=3)], [worker("a")]) == [("a", "job", (0, 1, 2))]


def test_a_job_is_shared_evenly_so_that_all_finish_together():
    assert decided([job(count=6)], [worker("a"), worker("b")]) == [("a", "job", (0, 1, 2)), ("b", "job", (3, 4, 5))]


def test_a_job_is_shared_by_speed_so_that_all_finish_together():
    fast = worker("fast", speed=4.0, free_slots=16)
    assert decided([job(count=10)], [worker("slow", free_slots=4), fast]) == [
        ("fast", "job", tuple(range(8))),
        ("slow", "job", (8, 9)),
    ]


def test_nobody_gets_more_than_there_are_free_slots():
    assert decided([job(count=20)], [worker("a", free_slots=5)]) == [("a", "job", (0, 1, 2, 3, 4))]


def test_no_batch_is_larger_than_the_limit():
    limits = BatchLimits(requests=3, tokens=99)
    assert [len(indices) for _, _, indices in decided([job(count=8)], [worker("a")], limits)] == [3, 3, 2]


def test_a_worker_that_runs_many_at_once_gets_batches_in_proportion():
    limits = BatchLimits(requests=32, tokens=9_999)
    sizes = {
        slots: {len(indices) for _, _, indices in decided([job(count=128)], [large_worker(slots)], limits)}
        for slots in (64, 128, 255, 256, 512)
    }
    assert sizes == {64: {32}, 128: {32}, 255: {32}, 256: {64}, 512: {128}}
    few_tokens = BatchLimits(requests=99, tokens=40)
    assert {len(batch.indices) for batch in scheduled(snapshot([job(count=8)], [large_worker(256)]), few_tokens)} == {8}


def large_worker(slots):
    return worker(slots=slots, free_slots=128, free_tokens=99_999)


def test_no_batch_has_more_tokens_than_the_limit():
    assert decided([job(count=4)], [worker("a")], BatchLimits(requests=32, tokens=20)) == [
        ("a", "job", (0, 1)),
        ("a", "job", (2, 3)),
    ]


def test_no_worker_gets_more_batches_than_it_may():
    limits = BatchLimits(requests=1, tokens=100)
    assert len(decided([job(count=8)], [worker("a", free_batches=2)], limits)) == 2


def test_a_request_larger_than_every_budget_still_runs():
    huge = job(requests=(PendingRequest(index=0, cost=10**6),))
    assert decided([huge], [worker("a")]) == [("a", "job", (0,))]


def test_what_texts_become_is_what_counts():
    """Each may take 100 tokens; by experience it is 10 of a prompt and 1.5 times 10."""
    requests = tuple(PendingRequest(index=i, cost=100, prompt_tokens=10) for i in range(8))
    first, _ = scheduled(snapshot([job(requests=requests, mean_output=10.0)], [worker("a", free_tokens=200)]))
    assert (first.indices, first.tokens) == (tuple(range(7)), (26,) * 7)


def test_two_jobs_of_a_user_get_turns():
    workers = [worker("a", free_slots=4, idle_slots=4)]
    jobs = [job("one", 50, created_ms=1, backlog=900), job("two", 50, created_ms=2, backlog=900)]
    limits = BatchLimits(requests=2, tokens=999)
    assert [name for _, name, _ in decided(jobs, workers, limits)] == ["one", "two"]


def test_a_higher_class_is_served_first():
    jobs = [job("low", 8, priority=-10), job("high", 6, priority=10)]
    assert decided(jobs, [worker("a")]) == [("a", "high", tuple(range(6))), ("a", "low", (0, 1))]


def test_a_job_that_nobody_serves_does_not_keep_others_waiting():
    assert decided([job("one", 2, model="other"), job("two", 2)], [worker("a")]) == [("a", "two", (0, 1))]


def test_a_worker_kept_for_suspects_gets_nothing_else():
    jobs = [job(requests=pending(1, 0, 0))]
    assert decided(jobs, [worker("a")]) == [("a", "job", (0,))]
    assert decided(jobs, [worker("a", in_hand=1)]) == []
    assert decided(jobs, [worker("a"), worker("b")]) == [("a", "job", (0,)), ("b", "job", (1, 2))]


def test_without_workers_or_jobs_nothing_is_decided():
    assert decided([job(count=3)], []) == []
    assert decided([], [worker("a")]) == []


# Properties, over any snapshot


def requests_of(snap):
    return {(j.id, request.index): request for j in snap.jobs for request in j.pending}


def room_used(snap, assignments):
    """For each worker that got something: the worker, its assignments, and their requests."""
    found = requests_of(snap)
    for w in snap.workers:
        own = [a for a in assignments if a.session_id == w.session_id]
        yield w, own, [[found[a.job_id, index] for index in a.indices] for a in own]


@given(views.snapshots, views.limits)
def test_no_request_is_in_two_batches_and_every_one_exists(snap, limits):
    assigned = [(a.job_id, index) for a in scheduled(snap, limits) for index in a.indices]
    assert len(set(assigned)) == len(assigned)
    assert set(assigned) <= set(requests_of(snap))


@given(views.snapshots, views.limits)
def test_the_same_snapshot_gives_the_same_decisions(snap, limits):
    assert scheduled(snap, limits) == scheduled(snap, limits)


@given(views.snapshots, views.limits)
def test_no_batch_is_empty_and_each_fits_its_worker(snap, limits):
    jobs = {j.id: j for j in snap.jobs}
    workers = {w.session_id: w for w in snap.workers}
    for a in scheduled(snap, limits):
        assert a.indices
        assert workers[a.session_id].worker == a.worker
        assert workers[a.session_id].serves(jobs[a.job_id].model)


@given(views.snapshots, views.limits)
def test_budgets_and_room_are_kept(snap, limits):
    assignments = scheduled(snap, limits)
    jobs = {j.id: j for j in snap.jobs}
    for a in assignments:
        found = requests_of(snap)
        mean = None if a.isolated else jobs[a.job_id].mean_output
        assert a.tokens == tuple(expected_tokens(found[a.job_id, index], mean) for index in a.indices)
    for w, own, batches in room_used(snap, assignments):
        plain = [(a, batch) for a, batch in zip(own, batches, strict=True) if not a.isolated]
        assert len(plain) <= max(w.free_batches, 0)
        assert sum(len(batch) for _, batch in plain) <= max(w.free_slots, 0)
        assert all(len(batch) <= limits.requests for _, batch in plain)
        left = w.free_tokens
        for a, batch in plain:
            tokens = sum(a.tokens)
            # Only a request that is alone in its batch may be larger than what is left.
            assert len(batch) == 1 or tokens <= min(left, limits.tokens)
            assert left > 0
            left -= tokens


@given(views.snapshots, views.limits)
def test_no_class_is_served_while_a_higher_one_could_use_the_worker(snap, limits):
    assignments = scheduled(snap, limits)
    sent = {(a.job_id, index) for a in assignments for index in a.indices}
    jobs = {j.id: j for j in snap.jobs}
    for a in assignments:
        for j in snap.jobs:
            left = any((j.id, request.index) not in sent for request in j.pending if not request.attempts)
            if left and j.model in ("", jobs[a.job_id].model) and not a.isolated:
                assert j.level <= jobs[a.job_id].level


@given(views.snapshots, views.limits)
def test_suspects_are_alone_on_their_worker(snap, limits):
    assignments = scheduled(snap, limits)
    for w, own, batches in room_used(snap, assignments):
        if any(a.isolated for a in own):
            assert len(own) == 1
            assert w.in_hand == 0
        for a, batch in zip(own, batches, strict=True):
            assert all((request.attempts > 0) == a.isolated for request in batch)
            if any(request.attempts + 1 >= limits.max_attempts for request in batch) and a.isolated:
                assert len(batch) == 1


@given(views.snapshots, views.limits)
def test_a_worker_that_runs_suspects_gets_nothing(snap, limits):
    assert all(not own for w, own, _ in room_used(snap, scheduled(snap, limits)) if w.isolated)


@given(views.snapshots, views.limits)
def test_nothing_waits_while_a_worker_that_is_as_fast_as_any_could_run_it(snap, limits):
    """What is left pending and unsuspected has no worker with an idle slot that is not kept for suspects."""
    assignments = scheduled(snap, limits)
    sent = {(a.job_id, index) for a in assignments for index in a.indices}
    suspicious = {w for j in snap.jobs if any(r.attempts for r in j.pending) for w in able(snap, j)}
    for j in snap.jobs:
        if any((j.id, r.index) not in sent for r in j.pending if r.attempts == 0):
            for w, own, _ in room_used(snap, assignments):
                fastest = all(other.speed / other.slots <= w.speed / w.slots for other in snap.workers)
                if w.serves(j.model) and w.session_id not in suspicious and not w.isolated and fastest:
                    taken = sum(len(a.indices) for a in own)
                    full = (
                        w.idle_slots <= taken
                        or w.free_batches <= len(own)
                        or w.free_tokens <= sum(sum(a.tokens) for a in own)
                    )
                    assert full or taken > 0  # it has its part of what is left


def test_nobody_waits_for_a_worker_that_takes_nothing():
    """It runs one request at a time, faster than the other does, but has no memory, or is busy with suspects only."""
    takes_nothing = worker("none", slots=1, free_slots=2, free_tokens=0, idle_slots=0)
    suspicious = worker("suspects", slots=1, free_slots=1, in_hand=1, isolated=True)
    idle = worker("idle", slots=3, free_slots=4, free_tokens=51, idle_slots=3)
    (given,) = scheduled(snapshot([job(count=1)], [takes_nothing, suspicious, idle]))
    assert given.worker == "idle"


def able(snap, j):
    return [w.session_id for w in snap.workers if w.serves(j.model)]


def test_a_thousand_workers_all_get_work_in_one_round():
    workers = [worker(f"{i:04}", free_slots=40, slots=32, idle_slots=32, free_tokens=10**6) for i in range(1000)]
    requests = tuple(PendingRequest(index=i, cost=100) for i in range(20_000))
    assignments = scheduled(snapshot([job(requests=requests)], workers))
    assert sum(len(a.indices) for a in assignments) == 20_000
    assert len({a.session_id for a in assignments}) == 1000

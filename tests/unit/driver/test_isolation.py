from hypothesis import given
from hypothesis import strategies as st

from driver.isolation import isolate, suspect_batches, suspects_of
from tests.support import views
from tests.support.views import job, pending, worker


def sizes(*attempts, max_attempts=3):
    return [len(batch) for batch in suspect_batches(pending(*attempts), max_attempts)]


def isolated(jobs, workers, max_attempts=3):
    """Which worker runs which requests."""
    return {a.worker: a.indices for a in isolate(jobs, workers, max_attempts).assignments}


def test_only_requests_that_were_part_of_a_death_are_suspects():
    assert [item.index for item in suspects_of(job(requests=pending(0, 1, 0, 2)))] == [1, 3]


def test_suspects_run_in_batches_of_about_the_square_root():
    assert sizes(*[1] * 16) == [4, 4, 4, 4]
    assert sizes(*[1] * 10) == [3, 3, 3, 1]
    assert sizes(1) == [1]
    assert sizes() == []


def test_on_its_last_attempt_a_suspect_runs_alone_and_first():
    assert sizes(2, 2, 1, 1) == [1, 1, 1, 1]
    assert [[item.index for item in batch] for batch in suspect_batches(pending(1, 1, 1, 1, 2), 3)] == [
        [4],
        [0, 1],
        [2, 3],
    ]


def test_more_attempts_than_allowed_are_alone_too():
    assert sizes(7, 7, max_attempts=3) == [1, 1]
    assert sizes(1, 1, max_attempts=1) == [1, 1]


def test_an_idle_worker_gets_a_suspect_batch_alone():
    result = isolate([job(requests=pending(1))], [worker("a")], 3)
    assert [(a.worker, a.indices, a.isolated) for a in result.assignments] == [("a", (0,), True)]
    assert result.reserved == {"session of a"}


def test_a_busy_worker_is_kept_free_until_it_is_idle():
    result = isolate([job(requests=pending(1))], [worker("a", in_hand=3)], 3)
    assert result.assignments == ()
    assert result.reserved == {"session of a"}


def test_the_worker_that_is_idle_soonest_is_kept():
    workers = [worker("a", in_hand=5), worker("b", in_hand=2), worker("c", in_hand=9)]
    assert isolate([job(requests=pending(1))], workers, 3).reserved == {"session of b"}


def test_a_worker_with_suspects_gets_no_more():
    assert isolated([job(requests=pending(1, 1))], [worker("a", in_hand=1, isolated=True)]) == {}


def test_at_most_half_of_the_workers_run_suspects_while_other_work_waits():
    workers = [worker(name) for name in "abcd"]
    jobs = [job(requests=pending(*[2] * 10)), job("other", count=1)]
    assert len(isolated(jobs, workers)) == 2
    busy = [worker("a", in_hand=1, isolated=True), *workers[1:]]
    assert len(isolated(jobs, busy)) == 1


def test_all_workers_run_suspects_when_nothing_else_waits():
    workers = [worker(name) for name in "abcd"]
    assert len(isolated([job(requests=pending(*[2] * 10))], workers)) == 4
    assert len(isolated([job(requests=pending(*[2] * 10))], [worker("a")])) == 1


def test_no_more_workers_are_kept_than_there_are_batches():
    workers = [worker(name) for name in "abcdefgh"]
    assert isolate([job(requests=pending(1))], workers, 3).reserved == {"session of a"}


def test_only_workers_of_the_model_run_its_suspects():
    workers = [worker("a", model="other"), worker("b")]
    assert isolated([job(requests=pending(1))], workers) == {"b": (0,)}
    assert isolated([job(requests=pending(1))], [worker("a", model="other")]) == {}


def test_two_jobs_do_not_get_the_same_worker():
    workers = [worker(name) for name in "abcd"]
    jobs = [job("one", requests=pending(1)), job("two", requests=pending(1))]
    result = isolate(jobs, workers, 3)
    assert [(a.worker, a.job_id) for a in result.assignments] == [("a", "one"), ("b", "two")]


def test_without_suspects_nothing_happens():
    result = isolate([job(count=5)], [worker("a")], 3)
    assert (result.assignments, result.reserved) == ((), frozenset())


@given(st.lists(st.integers(1, 5), max_size=60), st.integers(1, 5))
def test_every_suspect_is_in_one_batch(attempts, max_attempts):
    suspects = pending(*attempts)
    batches = suspect_batches(suspects, max_attempts)
    assert sorted(item.index for batch in batches for item in batch) == list(range(len(suspects)))
    assert all(len(batch) == 1 for batch in batches for item in batch if item.attempts + 1 >= max_attempts)
    assert all(batch for batch in batches)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=60))
def test_batches_of_suspects_shrink_with_every_death(attempts):
    largest = max(len(batch) for batch in suspect_batches(pending(*attempts), 10))
    assert largest < len(attempts)


@given(views.snapshots, st.integers(1, 4))
def test_while_other_work_waits_half_of_the_workers_are_left_to_it(snapshot, max_attempts):
    models = {job.model for job in snapshot.jobs}
    others_wait = any(request.attempts == 0 for job in snapshot.jobs for request in job.pending)
    result = isolate(snapshot.jobs, snapshot.workers, max_attempts)
    if len(models) == 1 and others_wait:
        able = [w for w in snapshot.workers if w.serves(*models)]
        before = sum(w.isolated for w in able)
        assert before + len(result.reserved) <= max(1, len(able) // 2, before)


@given(views.snapshots, st.integers(1, 4))
def test_suspects_always_have_a_worker_on_its_way(snapshot, max_attempts):
    result = isolate(snapshot.jobs, snapshot.workers, max_attempts)
    for view in snapshot.jobs:
        able = [w for w in snapshot.workers if w.serves(view.model)]
        if suspects_of(view) and able:
            assert any(w.isolated or w.session_id in result.reserved for w in able)


@given(views.snapshots, st.integers(1, 4))
def test_suspects_go_to_idle_workers_one_batch_each(snapshot, max_attempts):
    result = isolate(snapshot.jobs, snapshot.workers, max_attempts)
    workers = {w.session_id: w for w in snapshot.workers}
    used = [a.session_id for a in result.assignments]
    assert len(set(used)) == len(used)
    assert set(used) <= result.reserved
    assert all(workers[name].in_hand == 0 and not workers[name].isolated for name in used)
    assert all(a.isolated for a in result.assignments)

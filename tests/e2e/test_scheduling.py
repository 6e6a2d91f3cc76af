"""Order, shares and placement with real processes; the policies themselves are tested in simulation."""

from driver import SamplingParams
from tests.simulate.agreement import compare
from tests.simulate.mix import simulate_mix
from tests.simulate.real import run_mix
from tests.support.cluster import TOKENS_PER_S
from tests.support.committed import committed
from tests.support.waiting import wait_until

HUGE = 600  # requests of a second each: about nine seconds of the cluster's work
MIXED_TOKENS = 24_000  # four seconds


def submit(cluster, count, *, max_tokens=100, **options):
    return cluster.client.submit(
        [f"{options} {i}" for i in range(count)], SamplingParams(max_tokens=max_tokens), **options
    )


def done(job):
    return job.progress().done


def test_a_small_job_behind_a_huge_one_does_not_wait_for_it(cluster):
    huge = submit(cluster, HUGE)
    wait_until(lambda: huge.progress().running >= 32, what="the huge job fills the workers")
    small = submit(cluster, 4, max_tokens=10)
    assert all(output.error is None for output in small.get(60))
    end_ms = max(at_ms for at_ms, _ in committed(cluster, small))
    assert sum(at_ms <= end_ms for at_ms, _ in committed(cluster, huge)) < HUGE / 2
    huge.cancel()
    huge.get(30)


def test_a_higher_priority_comes_first_and_a_lower_one_last(cluster):
    normal = submit(cluster, 200)
    wait_until(lambda: normal.progress().running >= 32, what="the first job fills the workers")
    low, high = submit(cluster, 4, priority="low"), submit(cluster, 100, priority="high")
    for job in (high, normal, low):
        assert all(output.error is None for output in job.get(60))
    last_high_ms = max(at_ms for at_ms, _ in committed(cluster, high))
    assert sum(at_ms <= last_high_ms for at_ms, _ in committed(cluster, normal)) < 200
    first_low_ms = min(at_ms for at_ms, _ in committed(cluster, low))
    assert sum(at_ms < first_low_ms for at_ms, _ in committed(cluster, high)) == 100


def test_equal_jobs_have_equal_shares_whatever_their_size(cluster):
    jobs = [submit(cluster, count, max_tokens=50, user=f"user{count}") for count in (HUGE, HUGE // 2)]
    wait_until(lambda: done(jobs[1]) >= 200, 60, what="most of the smaller job is done")
    begin_ms, *_, end_ms = [at_ms for at_ms, _ in committed(cluster, jobs[1])][:200]
    meanwhile = sum(begin_ms <= at_ms <= end_ms for at_ms, _ in committed(cluster, jobs[0]))
    assert 136 <= meanwhile <= 264, "as many, but for what the two workers have in hand"
    for job in jobs:
        job.cancel()
        job.get(30)


def test_a_worker_that_joins_gets_work_of_a_running_job(cluster):
    huge = submit(cluster, HUGE, max_tokens=500)  # longer than any start takes
    wait_until(lambda: huge.progress().running >= 32, what="the job fills the workers")
    cluster.start_worker("c")
    cluster.busy("c")
    assert done(huge) < HUGE
    huge.cancel()
    huge.get(30)
    cluster.end_worker("c")


def test_a_mix_of_jobs_ends_in_the_order_and_with_the_shares_of_the_simulation(cluster):
    """A short form of what `scripts/bench mix` does with eight workers."""
    simulated = simulate_mix(MIXED_TOKENS, gpus=2, slots=32, tokens_per_s=TOKENS_PER_S)
    found = compare(simulated, run_mix(cluster, MIXED_TOKENS, 60), clearly=0.2)
    assert not found.too_early
    assert not found.swapped, found
    assert [share for share in found.users if share.priority == 0 and share.difference > 0.25] == []

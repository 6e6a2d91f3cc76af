"""Reduced runs of `scripts/simulate`: the scheduler of the driver on simulated GPUs, to the last request.

The simulation itself checks that no request is assigned twice or when it is not pending, and it ends when all are done.
"""

import pytest

from tests.simulate.gpu import Gpu, Work
from tests.simulate.limit import least_over_bound, soonest_end_s
from tests.simulate.measures import jain
from tests.simulate.scenarios import Scenario, equal, heterogeneous, mixed, simulate, small
from tests.simulate.workload import SimulatedJob


def work(index, tokens):
    return Work(job=0, index=index, prompt_tokens=0, output_tokens=tokens, expected=tokens, batch=0)


# The simulated GPU


def test_alone_a_request_takes_its_tokens_over_the_speed():
    gpu = Gpu(slots=2, alone=10.0)
    assert gpu.add(work(0, 50), 1.0)
    assert gpu.next_end_s() == pytest.approx(6.0)
    done, begun = gpu.finish(6.0)
    assert (done.index, begun, gpu.done_tokens) == (0, [], pytest.approx(50.0))


def test_together_each_is_slower_and_all_are_faster():
    gpu = Gpu(slots=32, alone=10.0)
    for index in range(32):
        gpu.add(work(index, 50), 0.0)
    assert gpu.next_end_s() == pytest.approx(10.0)
    assert gpu.speed == pytest.approx(160.0)


def test_what_has_no_slot_waits_for_one():
    gpu = Gpu(slots=1, alone=10.0)
    assert [len(gpu.add(work(index, 50), 0.0)) for index in range(2)] == [1, 0]
    done, begun = gpu.finish(5.0)
    assert (done.index, begun[0].index, gpu.next_end_s()) == (0, 1, pytest.approx(10.0))


def test_jains_index_is_one_for_equals():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)


# The scheduler


def test_equal_jobs_keep_equal_gpus_busy_and_share_them_equally():
    results = simulate(equal(4, 5000, jobs=4), "stoker")
    assert results.utilisation > 0.97
    assert results.jain > 0.99
    assert results.over_bound < 1.04


def test_gpus_of_different_speeds_finish_together():
    results, fifo = (simulate(heterogeneous(6000), name) for name in ("stoker", "fifo"))
    assert results.utilisation > 0.97
    assert results.over_bound < 1.04
    assert results.over_bound < fifo.over_bound


def test_nobody_knows_what_runs_longest_so_the_bound_is_not_reached():
    few, many = (least_over_bound(gpus, 1000 * gpus, slots=32, alone=60.0) for gpus in (2, 40))
    assert 1.01 < few < many, "the more GPUs, the longer the last of them"
    assert least_over_bound(1, 1000, slots=1, alone=60.0) == pytest.approx(1.0), "one slot is busy to the end"


def test_what_comes_late_cannot_end_before_its_own_time():
    jobs = [SimulatedJob(count=2, at_s=1.0, lengths=((20, 9), (0, 19))), SimulatedJob(count=1, lengths=((0, 25),))]
    assert soonest_end_s(jobs, 10.0) == pytest.approx(2.9)


def test_many_small_jobs_are_served_as_one_large_would_be():
    results, large = simulate(small(2, 300, users=60), "stoker"), simulate(equal(2, 300, jobs=1), "stoker")
    assert results.batches == results.requests == 300
    assert results.over_bound < large.over_bound + 0.1


def test_a_batch_has_room_to_fill_while_no_slot_is_idle():
    scenario = equal(2, 1500, jobs=1)
    assert 2 * simulate(scenario, "stoker").batches < 1.5 * simulate(scenario, "fifo").batches


def test_small_jobs_behind_a_huge_one_start_at_once_and_by_class_though_workers_die():
    results = simulate(mixed(8, 3000, small_jobs=30), "stoker")
    assert results.wait_s[10] < 1.0
    assert results.wait_s[0] < 2.0
    assert results.wait_s[-10] > results.wait_s[0]


def test_all_classes_are_done_in_their_order():
    jobs = tuple(SimulatedJob(count=200, priority=priority) for priority in (-10, 0, 10))
    done_s = simulate(Scenario(speeds=(1.0,), jobs=jobs), "stoker").done_s
    assert done_s[10] < done_s[0] < done_s[-10]

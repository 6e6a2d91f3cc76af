"""What moves in the simulation: nothing is lost or in two places whatever the times, and a slow GPU is relieved."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.gpu import Gpu, Work
from tests.simulate.incidents import Incident, Kind, speed_over_time
from tests.simulate.scenarios import UNMOVED, equal, heterogeneous, planner, simulate
from tests.simulate.timing import Timing
from tests.simulate.troubles import troubles
from tests.simulate.workload import SimulatedJob
from tests.simulate.world import World


def work(index, tokens, **fields):
    values = {"job": 0, "prompt_tokens": 0, "expected": tokens, "batch": 0}
    return Work(index=index, output_tokens=tokens, **(values | fields))


# The parts


def test_what_goes_on_elsewhere_only_reads_what_it_has():
    gpu = Gpu(slots=2, alone=10.0)
    first, second = work(0, 50), work(1, 50)
    gpu.add(first, 0.0)
    gpu.add(second, 0.0)
    done = gpu.generated(first, 4.0)
    assert 30 < done < 40  # two are not quite as fast as one
    assert gpu.withdraw(first, 4.0) == []
    assert gpu.running == 1
    rest = work(0, 50, generated=done)
    assert rest.effort == pytest.approx(50 - done + 0.05 * done)


def test_who_is_withdrawn_makes_room_for_the_next():
    gpu = Gpu(slots=1, alone=10.0)
    first, second = work(0, 50), work(1, 50)
    gpu.add(first, 0.0)
    gpu.add(second, 0.0)
    assert gpu.withdraw(first, 1.0) == [second]
    assert gpu.next_end_s() == pytest.approx(6.0)


def test_without_memory_for_all_the_next_waits():
    gpu = Gpu(slots=2, alone=10.0, kv_tokens=150)
    begun = [gpu.add(work(index, 50, most_tokens=100), 0.0) for index in range(2)]
    assert [len(works) for works in begun] == [1, 0]
    assert [item.index for item in gpu.finish(5.0)[1]] == [1]


def test_what_has_not_begun_is_overtaken_by_a_higher_class_for_a_minute():
    gpu = Gpu(slots=1, alone=10.0)
    for index, (priority, at_s) in enumerate([(0, 0.0), (0, 0.0), (10, 1.0), (0, 2.0), (10, 61.0)]):
        gpu.add(work(index, 5000, priority=priority), at_s)
    assert [item.index for _, item in gpu.not_begun()] == [2, 1, 4, 3]


def test_the_bound_counts_who_comes_goes_and_slows_down():
    incidents = [
        Incident(at_s=10.0, gpu=0, kind=Kind.SLOW, speed=0.5),
        Incident(at_s=20.0, gpu=1, kind=Kind.JOIN),
        Incident(at_s=30.0, gpu=1, kind=Kind.DRAIN),
        Incident(at_s=5.0, gpu=0, kind=Kind.DEATH),
    ]
    speed = speed_over_time([10.0, 20.0], incidents)
    assert [speed.tokens_until(at_s) for at_s in (10, 20, 30, 40)] == pytest.approx([100, 150, 400, 450])
    assert [speed.time_for(tokens) for tokens in (50, 125, 275, 450)] == pytest.approx([5, 15, 25, 40])


# What moves


def test_a_gpu_that_slows_down_near_the_end_is_relieved():
    scenario = troubles(requests=1200, gpus=4)["slow at 97%"]
    moved, unmoved = simulate(scenario, "stoker"), simulate(scenario, UNMOVED)
    assert moved.moved > 0
    assert moved.moved_again == 0
    assert moved.over_bound < unmoved.over_bound - 0.05


def test_between_equal_gpus_nothing_moves():
    assert simulate(equal(3, 900), "stoker").orders == 0


def test_nothing_moves_twice_between_gpus_of_different_speeds():
    assert simulate(heterogeneous(2000), "stoker").moved_again == 0


class _AnyTiming(Timing):
    """Beats that come late, answers that are lost, messages that take long."""

    def __init__(self, seed):
        self._draw = random.Random(seed)

    def beat_s(self):
        return self._draw.choice((0.1, 1.0, 1.0, 2.0, 7.0))

    def answer_arrives(self):
        return self._draw.random() < 0.8

    def dispatch_s(self):
        return self._draw.choice((0.0, 0.02, 1.0))

    def give_back_s(self):
        return self._draw.choice((0.0, 0.01, 0.5, 3.0))


class _Checked(World):
    """Looks in every round whether each request is in exactly one place."""

    def _round(self, what):
        super()._round(what)
        held = [(*key,) for worker in self._workers for key in worker.in_hand]
        lost = [item for _, _, kind, items in self._events if kind == "release" for item in items]
        assert len(held) == len(set(held))
        assert sum(job.pending for job in self._jobs) + len(held) + len(lost) == self._open


_incidents = st.lists(
    st.builds(
        lambda at_s, gpu, kind: Incident(at_s=at_s, gpu=0 if kind is Kind.DRAIN else gpu, kind=kind, speed=0.1),
        st.floats(0.0, 30.0),
        st.integers(0, 2),
        st.sampled_from([Kind.SLOW, Kind.DEATH, Kind.DRAIN]),
    ),
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), _incidents, st.integers(1, 120))
def test_nothing_is_lost_or_in_two_places_whenever_beats_and_orders_come(seed, incidents, count):
    gpus = [Gpu(slots=4, alone=alone, kv_tokens=2000) for alone in (20.0, 60.0, 60.0)]
    jobs = [SimulatedJob(count=count), SimulatedJob(count=5, priority=10, at_s=3.0)]
    world = _Checked(gpus, jobs, planner(), incidents, timing=_AnyTiming(seed))
    world.run()
    assert [job.answered for job in world._jobs] == [count, 5]
    assert not any(job.pending for job in world._jobs)

"""What is simulated: GPUs, jobs and deaths."""

import random
from collections.abc import Callable, Sequence

import msgspec

from broker.records import Session
from driver.detector import DetectorLimits
from driver.planner import Planner
from driver.scheduler import BatchLimits
from driver.snapshot import Recall, WorkerView
from tests.simulate.baselines import FirstComeFirstServed
from tests.simulate.gpu import Gpu
from tests.simulate.incidents import Incident, Kind
from tests.simulate.measures import Measures, Results
from tests.simulate.workload import MAX_TOKENS, SimulatedJob
from tests.simulate.world import Schedules, World

SLOTS = 32
ALONE = 60.0  # tokens per second of one request, alone on a GPU of speed 1


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs by their relative speed, jobs, and what happens to GPUs."""

    speeds: tuple[float, ...]
    jobs: tuple[SimulatedJob, ...]
    incidents: tuple[Incident, ...] = ()
    kv_tokens: tuple[int, ...] = ()  # of each GPU; without, there is always enough


def planner(kind: type[Planner] = Planner) -> Planner:
    """The driver's planner, with the settings' defaults."""
    return kind(BatchLimits(requests=32, tokens=16_384, max_batch_delay=0.5), DetectorLimits(), ageing_s=60.0)


class Unmoved(Planner):
    """The driver's planner, which lets what waits at a worker stay there."""

    def balance(self, sessions: Sequence[Session], workers: Sequence[WorkerView], now_ms: int) -> tuple[Recall, ...]:
        return ()


STOKER = "stoker"
UNMOVED = "unmoved"  # the same, but nothing moves
ORACLE = "oracle"  # the driver's planner, but the last requests of a job come longest first
PLANNERS: dict[str, Callable[[], Schedules]] = {
    STOKER: planner,
    UNMOVED: lambda: planner(Unmoved),
    ORACLE: planner,
    "fifo": FirstComeFirstServed,
    "random": lambda: FirstComeFirstServed(random_workers=True),
}


def equal(gpus: int, requests: int, jobs: int = 10) -> Scenario:
    """Equal GPUs, and equal jobs of as many users that all arrive at once."""
    each = tuple(SimulatedJob(count=requests // jobs, user=f"user{n}") for n in range(jobs))
    return Scenario(speeds=(1.0,) * gpus, jobs=each)


def heterogeneous(requests: int, speeds: Sequence[float] = (1.0, 2.0, 4.0, 4.0)) -> Scenario:
    """GPUs of different speeds, and two equal jobs."""
    return Scenario(speeds=tuple(speeds), jobs=(SimulatedJob(count=requests // 2),) * 2)


def mixed(gpus: int, requests: int, small_jobs: int = 150, seed: int = 1) -> Scenario:
    """A huge job of normal priority; small ones of every priority behind it; and workers that die."""
    draw = random.Random(seed)
    span_s = requests / (gpus * 8)
    small = [
        SimulatedJob(
            count=draw.randint(1, 64), at_s=draw.uniform(0, span_s), priority=priority, user=f"user{draw.randrange(5)}"
        )
        for priority in (10, 0, -10)
        for _ in range(small_jobs // 3)
    ]
    deaths = tuple(
        Incident(at_s=draw.uniform(0, span_s), gpu=draw.randrange(gpus), kind=Kind.DEATH)
        for _ in range(max(1, gpus // 20))
    )
    return Scenario(speeds=(1.0,) * gpus, jobs=(SimulatedJob(count=requests, user="huge"), *small), incidents=deaths)


def small(workers: int, jobs: int, users: int) -> Scenario:
    """Many jobs of one request each, of so many users, all there at once."""
    each = tuple(SimulatedJob(count=1, user=f"user{n % users}") for n in range(jobs))
    return Scenario(speeds=(1.0,) * workers, jobs=each)


def drawn_again(scenario: Scenario, *, seed: int = 0, end_sorted: bool = False) -> Scenario:
    """The same with other lengths, or with the last of each job's requests in an order that only an oracle knows."""
    change = msgspec.structs.replace
    jobs = tuple(change(job, seed=seed, end_sorted=end_sorted) for job in scenario.jobs)
    return change(scenario, jobs=jobs)


def simulate(scenario: Scenario, name: str, seed: int = 0) -> Results:
    """Run a scenario under the planner of this name."""
    return world(scenario, name, seed).run().results()


def world(scenario: Scenario, name: str, seed: int = 0, measures: type[Measures] = Measures) -> World:
    """A scenario that is ready to run under the planner of this name."""
    scenario = drawn_again(scenario, seed=seed, end_sorted=name == ORACLE)
    memories = scenario.kv_tokens or (SLOTS * 4 * MAX_TOKENS,) * len(scenario.speeds)
    gpus = [
        Gpu(slots=SLOTS, alone=ALONE * speed, kv_tokens=memory)
        for speed, memory in zip(scenario.speeds, memories, strict=True)
    ]
    return World(gpus, scenario.jobs, PLANNERS[name](), scenario.incidents, measures=measures)

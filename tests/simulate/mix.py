"""One mix of jobs, for the simulation and for real processes: users, classes, weights, deadlines and sizes."""

import math
from collections.abc import Sequence

import msgspec

from tests.simulate.gpu import Gpu
from tests.simulate.incidents import Speed
from tests.simulate.measures import Measures
from tests.simulate.scenarios import planner
from tests.simulate.workload import SimulatedJob
from tests.simulate.world import World

PROMPT_TOKENS = 3


class MixedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the mix; `part` is how much of all tokens it has, in texts from `shortest` to `longest` tokens."""

    name: str
    part: float
    user: str
    priority: int = 0
    weight: float = 1.0
    deadline_s: float = 0.0
    shortest: int = 20
    longest: int = 60

    def texts(self, tokens: int) -> list[int]:
        """How long each of its texts is when all jobs have so many tokens together."""
        span = self.longest - self.shortest + 1
        # A stride that has no divisor in common with the span: all lengths, and neighbours are not alike.
        stride = next(step for step in range(span // 3 + 1, span + 2) if math.gcd(step, span) == 1)
        count = max(2, round(self.part * tokens / ((self.shortest + self.longest) / 2)))
        return [self.shortest + place * stride % span for place in range(count)]


# Within a class nothing is of equal size: what ends first says whose turn it was.
MIX = (
    MixedJob(name="low short", part=0.05, user="ann", priority=-10),
    MixedJob(name="low long", part=0.15, user="bob", priority=-10),
    MixedJob(name="weight 1", part=0.14, user="ann", weight=1),
    MixedJob(name="weight 3", part=0.14, user="ann", weight=3),
    MixedJob(name="long texts", part=0.12, user="bob", shortest=50, longest=90),
    MixedJob(name="short texts", part=0.22, user="carl", shortest=10, longest=30),
    MixedJob(name="high with a deadline", part=0.06, user="ann", priority=10, deadline_s=3600),
    MixedJob(name="high", part=0.12, user="carl", priority=10),
)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is done, seconds after the first could begin; `job` is a place in the mix."""

    at_s: float
    job: int
    tokens: int


class _Ends(Measures):
    """Notes each request's end, too."""

    def __init__(self, jobs: Sequence[SimulatedJob], speed: Speed) -> None:
        super().__init__(jobs, speed)
        self.ends: list[End] = []

    def note_end(self, job: int, effort: float, now_s: float) -> None:
        super().note_end(job, effort, now_s)
        self.ends.append(End(at_s=now_s, job=job, tokens=round(effort)))


def simulate_mix(tokens: int, *, gpus: int, slots: int, tokens_per_s: float) -> list[End]:
    """The mix on GPUs whose requests each have `tokens_per_s`, as those of the simulated engine."""
    jobs = [
        SimulatedJob(
            count=len(job.texts(tokens)),
            priority=job.priority,
            user=job.user,
            weight=job.weight,
            deadline_s=job.deadline_s,
            lengths=tuple((PROMPT_TOKENS, text) for text in job.texts(tokens)),
        )
        for job in MIX
    ]
    machines = [Gpu(slots=slots, alone=tokens_per_s, half=math.inf) for _ in range(gpus)]
    measures = World(machines, jobs, planner(), measures=_Ends).run()
    assert isinstance(measures, _Ends)
    return measures.ends

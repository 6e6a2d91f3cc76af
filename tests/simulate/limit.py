"""How near to the bound anything can come.

With equal GPUs that is: anything that neither knows lengths nor takes back what runs. Until nothing waits every slot of
every GPU is refilled at once, and deciding takes no time. What the slots then hold has to run to its end, and nobody
can tell which of them has the longest left.
"""

import random
from collections.abc import Sequence

from tests.simulate.gpu import PREFILL_COST, Gpu, Work
from tests.simulate.workload import LENGTHS, SimulatedJob, lengths_of


def soonest_end_s(jobs: Sequence[SimulatedJob], alone: float) -> float:
    """When the last can be done at the soonest, as a request that comes late takes its time even if it is alone."""
    return max(
        job.at_s + (output + PREFILL_COST * prompt) / alone
        for number, job in enumerate(jobs)
        for prompt, output in lengths_of(number, job)
    )


def least_over_bound(gpus: int, requests: int, *, slots: int, alone: float, seed: int = 0) -> float:
    """The makespan over the bound; `alone` is tokens per second of one request alone on a GPU."""
    draw = random.Random(seed)
    efforts = [output + PREFILL_COST * prompt for prompt, output in LENGTHS]
    speed = gpus * Gpu(slots=slots, alone=alone).speed
    left, last_s = 0.0, 0.0
    for _ in range(gpus):
        # Of what runs at any moment the long ones are the more, by their lengths, and each is somewhere in its course.
        rests = [effort * draw.random() for effort in draw.choices(efforts, weights=efforts, k=slots)]
        left += sum(rests)
        last_s = max(last_s, _drained_s(rests, slots, alone))
    bound_s = requests * sum(efforts) / len(efforts) / speed
    return 1 + (last_s - left / speed) / bound_s


def _drained_s(rests: list[float], slots: int, alone: float) -> float:
    gpu, now_s = Gpu(slots=slots, alone=alone), 0.0
    for index, rest in enumerate(rests):
        prompt_tokens = round(rest / PREFILL_COST)  # of any kind: a unit is as good as another
        gpu.add(Work(job=0, index=index, prompt_tokens=prompt_tokens, output_tokens=0, expected=0, batch=0), 0.0)
    while (end_s := gpu.next_end_s()) is not None:
        now_s = end_s
        gpu.finish(now_s)
    return now_s

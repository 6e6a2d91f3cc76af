"""Where work may be at the wrong worker: a GPU that becomes slow, leaves or comes, and texts that nobody expected."""

from collections.abc import Sequence
from random import Random
from statistics import fmean

import msgspec

from tests.simulate.gpu import PREFILL_COST, Gpu
from tests.simulate.incidents import Incident, Kind
from tests.simulate.measures import Results
from tests.simulate.scenarios import ALONE, SLOTS, Scenario
from tests.simulate.workload import LENGTHS, MAX_TOKENS, SimulatedJob

GPUS = 8
REQUESTS = 8000
QUARTER = 0.25
REQUEST_TOKENS = sum(output + PREFILL_COST * prompt for prompt, output in LENGTHS) / len(LENGTHS)


def troubles(requests: int = REQUESTS, gpus: int = GPUS) -> dict[str, Scenario]:
    """Each with a name. `part` is how much of the time is over when something happens to the first GPU."""
    found = {f"slow at {part:.0%}": _incident(Kind.SLOW, part, requests, gpus) for part in (0.5, 0.9, 0.97, 0.99, 1.0)}
    found |= {f"drain at {part:.0%}": _incident(Kind.DRAIN, part, requests, gpus) for part in (0.5, 0.99)}
    found["slow, drains at 50%"] = _slow_drains(requests, gpus)
    found |= {f"join at {part:.0%}": _incident(Kind.JOIN, part, requests, gpus) for part in (0.97, 1.0)}
    found["speeds 1, 2, 4, 4"] = Scenario(speeds=(1.0, 2.0, 4.0, 4.0), jobs=_jobs(requests, 70.0))
    found["longer at last"] = _longer_at_last(requests, gpus)
    found["longer, little memory"] = _longer_at_last(requests, gpus, kv_tokens=SLOTS * MAX_TOKENS // 2)
    return found


def _incident(kind: Kind, part: float, requests: int, gpus: int) -> Scenario:
    """At a quarter of its speed, leaving, or not there before."""
    at_s = part * requests * REQUEST_TOKENS / (gpus * Gpu(slots=SLOTS, alone=ALONE).speed)
    what = Incident(at_s=at_s, gpu=0, kind=kind, speed=QUARTER if kind is Kind.SLOW else 1.0)
    return Scenario(speeds=(1.0,) * gpus, jobs=_jobs(requests, at_s / part), incidents=(what,))


def _jobs(requests: int, span_s: float) -> tuple[SimulatedJob, ...]:
    """A large job, and beside it small ones of the other classes."""
    draw = Random(7)
    small = [
        SimulatedJob(count=draw.randint(1, 8), at_s=draw.uniform(0, span_s), priority=priority)
        for priority in (10, -10)
        for _ in range(20)
    ]
    return (SimulatedJob(count=requests), *small)


def _slow_drains(requests: int, gpus: int) -> Scenario:
    """Slow since long before it is asked to leave."""
    slow = _incident(Kind.SLOW, 0.3, requests, gpus)
    return msgspec.structs.replace(
        slow, incidents=slow.incidents + _incident(Kind.DRAIN, 0.5, requests, gpus).incidents
    )


def _longer_at_last(requests: int, gpus: int, kv_tokens: int = 0) -> Scenario:
    """Texts of a sixth of the measured lengths, and at last one in twenty of `max_tokens`: estimates are wrong."""
    rows = Random(5).choices(LENGTHS, k=requests)
    short = [(prompt, max(1, output // 6)) for prompt, output in rows[: requests * 19 // 20]]
    long = [(prompt, MAX_TOKENS) for prompt, _ in rows[requests * 19 // 20 :]]
    job = SimulatedJob(count=requests, lengths=(*short, *long), most=MAX_TOKENS)
    return Scenario(speeds=(1.0,) * gpus, jobs=(job,), kv_tokens=(kv_tokens,) * gpus if kv_tokens else ())


def row(name: str, planner: str, results: Sequence[Results]) -> str:
    """A line that says what came out of several runs: means, and how far the makespans are apart."""
    ratios = [result.over_bound for result in results]
    done = {priority: fmean(result.done_s[priority] for result in results) for priority in results[0].done_s}
    ends = ", ".join(f"{priority}: {end:.2f} s" for priority, end in done.items())
    leaving = f"; left after {fmean(result.left_s for result in results):.0f} s" if results[0].left_s else ""
    return (
        f"{name:22} {planner:8} makespan {fmean(ratios):.3f} x bound ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"utilisation {fmean(result.utilisation for result in results):.3f}, "
        f"{fmean(result.moved for result in results):.0f} moved "
        f"({sum(result.moved_again for result in results)} again) "
        f"by {fmean(result.orders for result in results):.1f} orders; done by priority: {ends}{leaving}"
    )

"""Milliseconds from submitting one request to having its output, without a model: idle, and past others that wait."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles

import msgspec

from tests.bench.comparison import Comparison, compare
from tests.bench.contender import Contender
from tests.bench.latency_stoker import idle_latencies, urgent_latencies
from tests.bench.peer import FSYNC, Peer, peer_versions
from tests.bench.plot import bars
from tests.bench.scenario import Report, chosen, report_of
from tests.bench.table import Column, comparison_table, number

STOKER = "Stoker"
PLOT = "bench-latency.svg"
P50_GOAL_MS, P99_GOAL_MS = 5.0, 20.0
IDLE = {
    "Celery, `delay().get()`": Peer(script="celery_latency.py", modules=("celery", "redis")),
    "RQ, `enqueue`, `latest_result`": Peer(script="rq_latency.py", modules=("rq",)),
    "Dramatiq, `send().get_result()`": Peer(script="dramatiq_latency.py", modules=("dramatiq", "redis")),
    "Ray actor, `get(remote())`": Peer(script="ray_latency.py", modules=("ray",)),
}
URGENT = {
    "Celery, priorities on Redis": Peer(script="celery_latency.py", modules=("celery", "redis")),
    "RQ, two queues": Peer(script="rq_latency.py", modules=("rq",)),
}
COLUMNS = (
    Column(metric="p50_ms", title="p50, ms", ratio="Stoker / it"),
    Column(metric="p99_ms", title="p99, ms", ratio="Stoker / it"),
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a run."""

    idle: int = 300
    urgent: int = 100
    waiting: int = 10_000
    rounds: int = 5


QUICK = Plan(idle=20, urgent=5, waiting=200, rounds=1)


def run_latency(plan: Plan, *, quick: bool = False) -> Report:
    """Both comparisons, one after the other."""
    plan = QUICK if quick else plan
    idle = _compare(IDLE, plan, lambda: idle_latencies(plan.idle), plan.idle, 0, quick=quick)
    urgent = _compare(
        URGENT,
        plan,
        lambda: urgent_latencies(plan.urgent, waiting=plan.waiting, max_tokens=1),
        plan.urgent,
        plan.waiting,
        quick=quick,
    )
    versions = peer_versions(("celery", "rq", "dramatiq", "ray"))
    plots = {PLOT: bars(idle, "p50_ms", "Milliseconds of one request on an idle system, p50")}
    report = report_of(idle, body(plan, idle, urgent), versions, plots)
    return msgspec.structs.replace(report, failures=(*idle.failures, *urgent.failures))


def body(plan: Plan, idle: Comparison, urgent: Comparison) -> str:
    """What the page says of it."""
    return "\n\n".join(
        (
            "One prompt of 500 bytes, given back by a worker that does no more, and sent when the output of the last"
            " one had been read. Whoever uses Redis has a fresh server of the same kind (Valkey,"
            f" `appendfsync {FSYNC}`). Percentiles are those of a round; their median and range are shown.",
            f"**On an idle system**, {plan.idle} a round",
            comparison_table(idle, COLUMNS),
            verdict(idle),
            f"![Median milliseconds of all, logarithmic]({PLOT})",
            f"**At high priority, while {plan.waiting:,} others wait** (at least half to the end; Stoker does half of"
            f" them sooner, and then gets as many again), {plan.urgent} a round",
            comparison_table(urgent, COLUMNS),
        )
    )


def verdict(idle: Comparison) -> str:
    """Whether the medians of Stoker's percentiles meet the goals."""
    found: list[str] = []
    for metric, goal_ms in (("p50_ms", P50_GOAL_MS), ("p99_ms", P99_GOAL_MS)):
        summary = idle.stoker.summary(metric)
        name = metric.removesuffix("_ms")
        if summary is None:
            found.append(f"{name} at most {goal_ms:g} ms: not measured in this run")
        else:
            is_met = summary.median <= goal_ms
            found.append(f"{name} at most {goal_ms:g} ms: {number(summary.median)}, {'met' if is_met else 'missed'}")
    return f"Goals: {'; '.join(found)}."


def _compare(
    peers: Mapping[str, Peer],
    plan: Plan,
    stoker: Callable[[], Sequence[float]],
    requests: int,
    waiting: int,
    *,
    quick: bool,
) -> Comparison:
    told = {"requests": requests, "waiting": waiting}
    others = [peer.contender(name, told) for name, peer in chosen(peers, quick=quick).items()]
    return compare([Contender(name=STOKER, measure=lambda: percentiles_ms(stoker())), *others], plan.rounds)


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile, as `peers/workload.py` has them."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}

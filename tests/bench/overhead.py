"""Requests per second without a model, end to end: Stoker beside what somebody would use instead."""

from collections.abc import Mapping

import msgspec

from tests.bench.comparison import Comparison, compare
from tests.bench.contender import Contender
from tests.bench.overhead_stoker import OverheadBench
from tests.bench.peer import FSYNC, Peer, peer_versions
from tests.bench.plot import bars
from tests.bench.scenario import Report, report_of
from tests.bench.summary import Summary
from tests.bench.table import Column, comparison_table, spread

STOKER, CELERY, CELERY_LISTS = "Stoker", "Celery, a task a request", "Celery, a task a list of 64"
GOALS = {CELERY: 20.0, CELERY_LISTS: 0.5}
WARM_UP = 1_000
QUICK = 128  # requests
PLOT = "bench-overhead.svg"
DISTRIBUTIONS = ("celery", "rq", "dramatiq", "ray")
_CELERY = Peer(script="celery_overhead.py", modules=("celery", "redis"))
_RAY = Peer(script="ray_overhead.py", modules=("ray", "pyarrow"))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table; so many requests take it two to four seconds on two cores."""

    requests: int
    keeps: str  # of a request, and what a death does to it
    peer: Peer | None = None
    told: dict[str, object] = {}

    def contender(self, name: str, requests: int) -> Contender:
        """It, with so many requests a round."""
        if self.peer is None:
            return Contender(name=name, measure=lambda: measure_stoker(requests))
        return self.peer.contender(name, {**self.told, "requests": requests})


ENTRIES = {
    STOKER: Entry(
        requests=40_000,
        keeps="each request's state, worker, attempts and output; what a death interrupts runs again in seconds",
    ),
    CELERY: Entry(
        requests=1_500,
        keeps="each task's result; a task in hand at a death is lost, or with `acks_late` runs again after 1 h",
        peer=_CELERY,
        told={"lists": False},
    ),
    CELERY_LISTS: Entry(
        requests=64_000,
        keeps="each list's result, nothing of a request; a list in hand at a death as above",
        peer=_CELERY,
        told={"lists": True},
    ),
    "RQ, a job a request": Entry(
        requests=800,
        keeps="each job and its result; a job in hand at a death is found later and marked failed",
        peer=Peer(script="rq_overhead.py", modules=("rq",)),
    ),
    "Dramatiq, a message a request": Entry(
        requests=3_000,
        keeps="each result; a message in hand at a death is sent again after a minute",
        peer=Peer(script="dramatiq_overhead.py", modules=("dramatiq", "redis")),
    ),
    "Ray actor, a call a request": Entry(
        requests=8_000,
        keeps="nothing: calls and results are in memory, and gone with the caller or the actor",
        peer=_RAY,
        told={"way": "calls"},
    ),
    "Ray actor, a call a list of 64": Entry(
        requests=192_000, keeps="nothing, as above", peer=_RAY, told={"way": "lists"}
    ),
    "Ray Data `map_batches` of 64": Entry(
        requests=16_000,
        keeps="nothing; what a dead worker had is computed again as long as the caller lives",
        peer=_RAY,
        told={"way": "data"},
    ),
}


def run_overhead(rounds: int, *, quick: bool = False, scale: float = 1.0) -> Report:
    """Stoker and the peers, once a round each, with `scale` times as many requests as is usual."""
    entries = {
        name: msgspec.structs.replace(entry, requests=QUICK if quick else max(1, round(entry.requests * scale)))
        for name, entry in ENTRIES.items()
        if not quick or entry.peer is None or entry.peer.is_installed
    }
    contenders = [entry.contender(name, entry.requests) for name, entry in entries.items()]
    comparison = compare(contenders, 1 if quick else rounds)
    requests = {name: entry.requests for name, entry in entries.items()}
    plots = {PLOT: bars(comparison, "requests_per_s", "Requests per second without a model")}
    return report_of(comparison, body(comparison, requests), peer_versions(DISTRIBUTIONS), plots)


def body(comparison: Comparison, requests: Mapping[str, int]) -> str:
    """What the page says of it."""
    columns = [Column(metric="requests_per_s", title="requests/s", ratio="Stoker / it")]
    sizes = ", ".join(f"{requests[result.name]:,}" for result in comparison.results)
    keeps = {name: entry.keeps for name, entry in ENTRIES.items()}
    return "\n\n".join(
        (
            "Prompts of 500 bytes that all differ, given back by an engine, task or actor that does nothing else;"
            " one worker process; from the first call that submits until the last result was read and compared. Workers"
            f" were up, and warm. In the order of the table {sizes} requests a round. Whoever uses Redis has a fresh"
            f" server of the same kind (Valkey, `appendfsync {FSYNC}`). Celery's worker is `-P solo` with a prefetch of"
            " 64, which takes least CPU a task; RQ's is a `SimpleWorker`, which does not fork for each job; Dramatiq"
            " has its 8 threads. All have hiredis.",
            comparison_table(comparison, columns, keeps, "what it keeps"),
            f"![Requests per second of all, logarithmic]({PLOT})",
            "\n".join(verdict(name, goal, _ratio(comparison, name)) for name, goal in GOALS.items()),
        )
    )


def verdict(name: str, goal: float, ratio: Summary | None) -> str:
    """A goal, and whether the median meets it."""
    if ratio is None:
        return f"- Goal against {name}: at least {goal:g}. Not measured in this run."
    return f"- Goal against {name}: at least {goal:g}. {spread(ratio)}: {'met' if ratio.median >= goal else 'missed'}."


def _ratio(comparison: Comparison, name: str) -> Summary | None:
    names = [result.name for result in comparison.results]
    return comparison.ratio(name, "requests_per_s") if name in names else None


def measure_stoker(requests: int) -> dict[str, float]:
    """Requests per second of a fresh installation, once it is warm."""
    bench = OverheadBench(fsync=FSYNC)
    try:
        bench.measure(min(requests, WARM_UP))
        return {"requests_per_s": bench.measure(requests).requests_per_s}
    finally:
        bench.close()

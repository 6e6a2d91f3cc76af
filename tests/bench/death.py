"""What the death of a worker costs, beside plain Celery, Ray and RQ, with one request at a time in each worker."""

from collections.abc import Mapping

import msgspec

from tests.bench.comparison import Comparison, Result, compare
from tests.bench.contender import Contender
from tests.bench.interruption import CHILD, KINDS, WHOLE, Killing, kill_workers
from tests.bench.peer import Peer, peer_versions, run_peer
from tests.bench.plot import bars
from tests.bench.scenario import Report, chosen, report_of
from tests.bench.summary import summarise
from tests.bench.table import NOTHING, spread, table

TUNED_S = 3  # as a visibility timeout, and as Stoker's heartbeat_timeout
RUN_TIMEOUT_S = 120.0
QUICK = Killing(requests=4, tokens=40, tokens_per_s=200.0)
STOKER, TUNED_STOKER = "Stoker", f"Stoker, `heartbeat_timeout` {TUNED_S} s"
CELERY, RAY, RQ = "Celery", "Ray, a pool of two actors", "RQ"
PLOT = "bench-death.svg"

_CELERY = Peer(script="recovery_celery.py", modules=("celery", "redis"))
PEERS = {
    CELERY: _CELERY,
    f"{CELERY}, visibility timeout {TUNED_S} s": _CELERY,
    RAY: Peer(script="recovery_ray.py", modules=("ray",)),
    RQ: Peer(script="recovery_rq.py", modules=("rq", "redis")),
}
# Which deaths each of them is measured with; an actor has only one.
DEATHS = dict(zip(PEERS, (KINDS, (WHOLE,), KINDS, KINDS), strict=True))
VISIBILITY_S = dict(zip(PEERS, (0, TUNED_S, 0, 0), strict=True))
# What the rest of a row says when a run has not ended in time.
CONFIGURED = {
    CELERY: "by configuration after the visibility timeout of 3,600 s",
    RQ: "by configuration a job is given up 90 s after its worker's last sign, and found at the"
    " next maintenance, every 600 s",
}
_WHAT = {
    CHILD: "The process that generates is killed, and what started it lives",
    WHOLE: "The whole worker is killed, as with a container: the process that generates and what started it",
}
_HEAD = ("", "run in seconds", "longer than undisturbed by, in seconds", "a request of it runs again after, in seconds")


def run_death(plan: Killing, rounds: int, *, quick: bool = False) -> Report:
    """Measure Stoker and the peers; a quick run kills the process that generates once."""
    peers = chosen(PEERS, quick=quick)
    contenders = _contenders(QUICK, (CHILD,), peers) if quick else _contenders(plan, KINDS, peers)
    comparison = compare(contenders, 1 if quick else rounds)
    versions = peer_versions(("celery", "ray", "rq")) if peers else {}
    plots = {
        PLOT: bars(
            comparison, f"{CHILD if quick else WHOLE}_rerun_s", "Seconds until a request of a killed worker runs again"
        )
    }
    return report_of(comparison, body(QUICK if quick else plan, comparison), versions, plots)


def _contenders(plan: Killing, kinds: tuple[str, ...], peers: Mapping[str, Peer]) -> list[Contender]:
    found = [Contender(name=STOKER, measure=lambda: kill_workers(plan, kinds))]
    if WHOLE in kinds:
        tuned = lambda: kill_workers(plan, (WHOLE,), heartbeat_timeout_s=TUNED_S)  # noqa: E731
        found.append(Contender(name=TUNED_STOKER, measure=tuned))
    workload = msgspec.to_builtins(plan)
    for name, peer in peers.items():
        if tried := [kind for kind in DEATHS[name] if kind in kinds]:
            found.append(_peer(name, peer, workload | {"kinds": tried, "visibility_s": VISIBILITY_S[name]}))
    return found


def _peer(name: str, peer: Peer, told: Mapping[str, object]) -> Contender:
    return Contender(name=name, measure=lambda: run_peer(peer.script, told, RUN_TIMEOUT_S))


def body(plan: Killing, comparison: Comparison) -> str:
    shown = [kind for kind in KINDS if any(f"{kind}_lost" in r.figures for x in comparison.results for r in x.rounds)]
    parts = [_about(plan)]
    for kind in shown:
        head = [*_HEAD, f"lost after {plan.limit_s:g} s", "given twice", "tokens generated again"]
        rows = [_row(result, kind, plan) for result in comparison.results]
        parts += [f"{_WHAT[kind]}:", table(head, [row for row in rows if row])]
    return "\n\n".join(
        [*parts, f"![Seconds until a request runs again]({PLOT}) (those that did not in time are not drawn)"]
    )


def _about(plan: Killing) -> str:
    duration_s = plan.tokens / plan.tokens_per_s
    return (
        f"Two workers, one request at a time in each; {plan.requests} requests of {plan.tokens} tokens, which take"
        f" {duration_s:g} s each, on an engine that sleeps. One worker is killed in the middle of a request once a"
        " quarter of the outputs is there. An actor of Ray is one process, so there is one kind of death for it; a"
        " killed whole worker of the others is not started again. Celery has `acks_late`, `reject_on_worker_lost` and a"
        " prefetch of one, Ray `max_restarts` and `max_task_retries`, RQ `Retry(max=3)`."
    )


def _row(result: Result, kind: str, plan: Killing) -> list[str]:
    rounds = [item.figures for item in result.rounds if f"{kind}_lost" in item.figures]
    if not rounds:
        return [result.name, "; ".join(result.failures), *[NOTHING] * 5] if result.failures else []
    ended = [item for item in rounds if f"{kind}_seconds" in item]
    late = f"not within {plan.limit_s:g} s in {len(rounds) - len(ended)} of {len(rounds)} rounds"
    if result.name in CONFIGURED:
        late += f"; {CONFIGURED[result.name]}"
    seconds = [item[f"{kind}_seconds"] for item in ended]
    longer = [item[f"{kind}_seconds"] - item["undisturbed_s"] for item in ended]
    cells = [spread(summarise(values)) for values in (seconds, longer) if values] or [late, NOTHING]
    if ended and len(ended) < len(rounds):
        cells[0] += f"; {late}"
    for name in ("rerun_s", "lost", "twice", "again_tokens"):
        values = [item[f"{kind}_{name}"] for item in rounds if f"{kind}_{name}" in item]
        cells.append(spread(summarise(values)) if values else NOTHING)
    return [result.name, *cells]

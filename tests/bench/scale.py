"""The sections `scale`, `million` and `start-up` of the page: what no peer is compared with."""

import os
from collections.abc import Callable, Mapping, Sequence

from tests.bench.comparison import Result, compare
from tests.bench.contender import Contender
from tests.bench.heartbeats import measure_heartbeats
from tests.bench.many import measure_many
from tests.bench.more_workers import SLOTS, measure_more_workers
from tests.bench.scenario import Report
from tests.bench.start_up import measure_cold_start, measure_import, measure_restart
from tests.bench.table import spread, table

ROUNDS = 5
WORKER_COUNTS = (1, 2, 4, 8)
BEATING = (200, 1_000, 2_000)
MILLION = (100_000, 1_000_000)


def run_scale(quick: bool) -> Report:
    """One to eight workers, and the heartbeats of hundreds."""
    load_before = os.getloadavg()[0]
    rounds, counts, rounds_of_slots = (1, (1, 2), 1) if quick else (ROUNDS, WORKER_COUNTS, 8)
    beating, seconds = ((20,), 1.0) if quick else (BEATING, 10.0)
    more = _alone("1 to 8 workers", lambda: measure_more_workers(counts, rounds_of_slots), rounds)
    many = {n: _alone(f"{n} heartbeats", lambda n=n: measure_heartbeats(n, seconds), min(rounds, 3)) for n in beating}
    body = "\n\n".join([*_more_workers(more, counts), *_heartbeats(many)])
    return Report(body=body, rounds=rounds, load_before=load_before, failures=_failures([more, *many.values()]))


def run_million(quick: bool) -> Report:
    """A hundred thousand and a million requests through a bounded window."""
    load_before = os.getloadavg()[0]
    runs = [_alone(f"{n:,} requests", lambda n=n: measure_many(n), 1) for n in ((500,) if quick else MILLION)]
    head = ["requests", "seconds", "requests/s", "client, MiB", "driver, MiB", "worker, MiB", "Redis, MiB"]
    body = "\n\n".join(
        [
            "`Client.run` over a generator of different prompts of 500 bytes, one worker, an engine that costs nothing."
            " Every output was counted: none missing, none twice, none failed. Memory is each process's largest.",
            table(head, [[_cell(result, metric) for metric in _MANY_METRICS] for result in runs]),
        ]
    )
    return Report(body=body, rounds=1, load_before=load_before, failures=_failures(runs))


def run_start_up(quick: bool) -> Report:
    """From nothing to the first output, and the like."""
    load_before = os.getloadavg()[0]
    rounds = 1 if quick else ROUNDS
    measured = {
        "import": measure_import,
        "restart": measure_restart,
        "simulated": lambda: measure_cold_start("simulated"),
        "real": lambda: measure_cold_start("transformers", "smollm2-135m"),
    }
    wanted = [name for name in measured if not (quick and name == "real")]
    results = {name: _alone(name, measured[name], rounds) for name in wanted}
    rows = [[title, _cell(results[name], metric)] for name, metric, title in _WAITS if name in results]
    body = table(["what", "time"], rows)
    failures = _failures(list(results.values()))
    return Report(body=body, rounds=rounds, load_before=load_before, failures=failures)


_WAITS = (
    ("import", "import_ms", "import of the client, ms (goal: 150)"),
    ("import", "import_cpu_ms", "the same, ms of CPU"),
    ("import", "first_client_ms", "making the first client after that, which loads redis-py, ms"),
    ("restart", "restart_s", "a worker's process killed until its successor is ready, s"),
    ("simulated", "first_output_s", "`stoker generate --local` with the simulated engine until the first output, s"),
    ("real", "first_output_s", "the same with SmolLM2-135M, s"),
)
_BEAT_METRICS = ("redis_percent", "driver_percent", "commands_per_s", "redis_mib", "late_ms")
_MANY_METRICS = ("requests", "seconds", "requests_per_s", "client_mib", "driver_mib", "worker_mib", "redis_mib")


def _more_workers(more: Result, counts: Sequence[int]) -> list[str]:
    rows = [[str(n), _cell(more, f"requests_per_s_{n}"), _cell(more, f"efficiency_{n}")] for n in counts]
    return [
        f"An engine that sleeps as a process does while its GPU works, {SLOTS} requests of one second at once on each"
        " worker; efficiency is requests/s of N workers divided by N times those of one, in the same round (goal at 8:"
        " 0.95).",
        table(["workers", "requests/s", "efficiency"], rows),
        f"With {counts[-1]} workers 1,000 requests with prompts of 500 bytes cost Redis"
        f" {_cell(more, 'redis_cpu_s_per_1000')} s of CPU, and {_cell(more, 'redis_mib_per_1000')} MiB while waiting.",
    ]


def _heartbeats(many: Mapping[int, Result]) -> list[str]:
    head = ["workers", "Redis", "driver", "commands/s", "Redis's memory, MiB", "latest beat, ms late"]
    rows = [[f"{n:,}", *(_cell(result, metric) for metric in _BEAT_METRICS)] for n, result in many.items()]
    return [
        "Workers that only beat, once a second, from one process with the calls and sizes of real ones; a driver leads."
        " CPU in percent of one core. Where the latest beat came seconds late the machine was full, and the figures"
        " count for less.",
        table(head, rows),
        _bound(many),
    ]


def _bound(many: Mapping[int, Result]) -> str:
    """How many workers one Redis carries, by the CPU of the largest measurement."""
    count = max(many)
    redis, driver = many[count].summary("redis_percent"), many[count].summary("driver_percent")
    if redis is None or driver is None:
        return ""
    return (
        f"If both grow as from 0 to {count:,} workers, heartbeats alone fill half a core of Redis at"
        f" {50 * count / max(redis.median, 0.01):,.0f} workers, and half a core of the driver at"
        f" {50 * count / max(driver.median, 0.01):,.0f}; the other halves are for the requests."
    )


def _alone(name: str, measure: Callable[[], Mapping[str, float]], rounds: int) -> Result:
    return compare([Contender(name=name, measure=measure)], rounds).stoker


def _cell(result: Result, metric: str) -> str:
    return spread(result.summary(metric))


def _failures(results: Sequence[Result]) -> list[str]:
    return [f"{result.name}: {failure}" for result in results for failure in result.failures]

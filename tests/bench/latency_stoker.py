"""Seconds from a request's submission to its output in the Python client, with real processes and no model.

On an idle system, and for a high-priority request that comes while thousands of others wait and run.
"""

import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from driver import Client, Job, SamplingParams
from tests.support.cluster import Cluster

WARM_UP = 20
SHORT = SamplingParams(max_tokens=1)
PROMPT = "p" * 480  # and a number, so that no two requests are identical
# The defaults of the product, where tests have others.
SETTINGS = {
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_STALL_TIMEOUT": "60",
    "STOKER_LOG_LEVEL": "WARNING",
    "STOKER_SIMULATED_TOKENS_PER_S": "0",
}


def idle_latencies(count: int = 500, *, workers: int = 1) -> list[float]:
    """Of requests sent one after the other, each when the last one's output is there; the engine costs nothing."""
    with _system(workers, tokens_per_s=0) as client:
        for i in range(WARM_UP):
            _latency(client, f"warm {i}")
        return [_latency(client, f"{PROMPT} {i}") for i in range(count)]


def urgent_latencies(
    count: int = 100,
    *,
    workers: int = 1,
    waiting: int = 10_000,
    tokens_per_s: float = 0.0,
    max_tokens: int = 20,
) -> list[float]:
    """Of high-priority requests of one token, each sent while at least half of `waiting` normal ones wait and run.

    The normal ones have `max_tokens` tokens, at `tokens_per_s` of each of the engine's 32 slots (0: free of cost).
    """
    with _system(workers, tokens_per_s=tokens_per_s) as client:
        for i in range(WARM_UP):
            _latency(client, f"warm {i}")
        found: list[float] = []
        crowd: list[Job] = []
        for i in range(count):
            if not crowd or _left(crowd[-1]) < waiting // 2:
                crowd.append(_crowd(client, len(crowd), waiting, max_tokens))
            found.append(_latency(client, f"{PROMPT} {i}", priority="high"))
        for job in crowd:
            job.cancel()
        for job in crowd:
            job.get(timeout=120)
        return found


def _latency(client: Client, prompt: str, priority: str = "normal") -> float:
    started_s = time.perf_counter()
    (output,) = client.submit([prompt], SHORT, priority=priority).get(timeout=60)
    seconds = time.perf_counter() - started_s
    assert output.error is None and output.text, f"an output, not {output}"
    return seconds


def _crowd(client: Client, number: int, size: int, max_tokens: int) -> Job:
    params = SamplingParams(max_tokens=max_tokens)
    return client.submit([f"{PROMPT} crowd {number} {i}" for i in range(size)], params)


def _left(job: Job) -> int:
    progress = job.progress()
    return progress.total - progress.done


@contextmanager
def _system(workers: int, *, tokens_per_s: float) -> Generator[Client]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        settings = {**SETTINGS, "STOKER_SIMULATED_TOKENS_PER_S": f"{tokens_per_s:g}"}
        # As the embedded server of `stoker up` keeps its data.
        cluster = Cluster(Path(folder), settings, fsync="everysec")
        try:
            cluster.start_driver()
            for i in range(workers):
                cluster.start_worker(f"w{i}")
            cluster.ready()
            yield cluster.client
        finally:
            cluster.stop()

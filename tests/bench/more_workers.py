"""Whether eight workers do eight times as much as one, and what that costs Redis.

The engine sleeps as a process sleeps while its GPU works: all workers' tokens together cost little of this machine's
CPUs, so that what is lost is lost by waiting for Stoker.
"""

import tempfile
import time
from pathlib import Path

import psutil

from driver import SamplingParams
from tests.bench.heartbeats import busy_s
from tests.support.cluster import Cluster

SLOTS = 16
TOKENS_PER_S = 20  # of one request
MAX_TOKENS = 20
SETTINGS = {
    "STOKER_SIMULATED_TOKENS_PER_S": str(TOKENS_PER_S),
    "STOKER_SIMULATED_SLOTS": str(SLOTS),
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
}
PROMPT = "x" * 500


def measure_more_workers(counts: tuple[int, ...], rounds_of_slots: int) -> dict[str, float]:
    """Requests per second for each number of workers (ascending, the first is 1), and what Redis did at the largest.

    Each worker gets `rounds_of_slots` times as many requests as it runs at once, one second each.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        cluster = Cluster(Path(folder), SETTINGS, fsync="everysec")
        try:
            cluster.start_driver()
            for count in counts:
                for number in range(len(cluster.workers), count):
                    cluster.start_worker(f"w{number}")
                cluster.ready(timeout=60.0)
                figures |= _measure(cluster, count, rounds_of_slots)
        finally:
            cluster.stop()
    rates = {count: figures[f"requests_per_s_{count}"] for count in counts}
    return figures | {f"efficiency_{count}": rate / (count * rates[1]) for count, rate in rates.items()}


def _measure(cluster: Cluster, workers: int, rounds_of_slots: int) -> dict[str, float]:
    redis = psutil.Process(cluster.redis.info("server")["process_id"])
    requests = workers * SLOTS * rounds_of_slots
    prompts = [f"{number} {PROMPT}" for number in range(requests)]
    cpu_s, memory = busy_s(redis), _used_memory(cluster)
    start_s = time.monotonic()
    job = cluster.client.submit(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    held = _used_memory(cluster) - memory  # as long as next to nothing is done
    outputs = job.get()
    seconds = time.monotonic() - start_s
    assert [output.index for output in outputs] == list(range(requests))
    assert all(output.usage.completion_tokens == MAX_TOKENS for output in outputs)
    return {
        f"requests_per_s_{workers}": requests / seconds,
        "redis_cpu_s_per_1000": 1000 * (busy_s(redis) - cpu_s) / requests,
        "redis_mib_per_1000": 1000 * held / requests / 2**20,
    }


def _used_memory(cluster: Cluster) -> int:
    return int(cluster.redis.info("memory")["used_memory"])

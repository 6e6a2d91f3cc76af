"""What a long batch file costs in memory: at the client, the driver and Redis, while it runs."""

import json
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from tests.support.cluster import Cluster
from tests.support.process import Process

SAMPLE_S = 0.5
SETTINGS = {"STOKER_SIMULATED_TOKENS_PER_S": "0", "STOKER_SIMULATED_SLOTS": "256", "STOKER_BATCH_SIZE": "64"}
PROMPT_WORDS = 60  # some 500 bytes a line


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The largest that was seen, in MiB, and how long the run took."""

    lines: int
    seconds: float
    client: float
    driver: float
    worker: float
    redis: float  # used_memory
    before: float  # used_memory, idle


def measure_memory(lines: int, limit: int = 0) -> Memory:
    """Run a file of so many different lines with one worker; `limit` is the most requests that may wait."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        folder = Path(name)
        source = folder / "in.jsonl"
        write_lines(source, lines)
        cluster = Cluster(folder, {**SETTINGS, "STOKER_MAX_PENDING_REQUESTS": str(limit)})
        try:
            driver, worker = cluster.start_driver(), cluster.start_worker("a")
            cluster.ready()
            return _run(cluster, driver, worker, source, lines)
        finally:
            cluster.stop()


def write_lines(path: Path, lines: int) -> None:
    """A batch file whose prompts all differ."""
    with path.open("w") as file:
        for number in range(lines):
            prompt = f"{number} " + "lorem ips " * PROMPT_WORDS
            body = {"prompt": prompt[:500], "max_tokens": 8}
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def _run(cluster: Cluster, driver: Process, worker: Process, source: Path, lines: int) -> Memory:
    before = _redis_mib(cluster)
    started_s = time.monotonic()
    run = cluster.start_stoker("batch", str(source), str(source.with_suffix(".out")))
    client = psutil.Process(run.pid)
    most = [0.0] * 4
    while run.is_running:
        try:
            now = [_rss_mib(client), _rss_mib(psutil.Process(driver.pid)), _rss_mib(worker_child(worker))]
        except psutil.NoSuchProcess:
            break
        most = [max(pair) for pair in zip(most, [*now, _redis_mib(cluster)], strict=True)]
        time.sleep(SAMPLE_S)
    assert run.wait() == 0, run.log
    seconds = time.monotonic() - started_s
    return Memory(
        lines=lines, seconds=seconds, client=most[0], driver=most[1], worker=most[2], redis=most[3], before=before
    )


def worker_child(worker: Process) -> psutil.Process:
    """The process that generates."""
    return psutil.Process(worker.pid).children()[0]


def _rss_mib(process: psutil.Process) -> float:
    return process.memory_info().rss / 2**20


def _redis_mib(cluster: Cluster) -> float:
    return cluster.redis.info("memory")["used_memory"] / 2**20

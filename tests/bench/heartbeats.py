"""What the heartbeats of hundreds of workers cost Redis and the driver. The workers' sessions and beats are real."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

# As a user has them; the cluster's own are shorter.
SETTINGS = {
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_LOG_LEVEL": "WARNING",
}
SETTLE_S = 2.0
OPENING_S = 60.0


class _Latest(msgspec.Struct, frozen=True):
    latest_s: float


def measure_heartbeats(workers: int, seconds: float) -> dict[str, float]:
    """CPU in percent of one core of Redis and of the driver that leads, idle but for the beats of so many workers.

    `late_ms` is how late the latest beat was: where it grows, the machine is too busy for its figures to count.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        cluster = Cluster(Path(folder), SETTINGS, fsync="everysec")
        try:
            driver = cluster.start_driver()
            wait_until(cluster.store.has_leader, what="a leader")
            with _beating(cluster, workers) as beating:
                wait_until(lambda: len(cluster.client.workers()) == workers, OPENING_S, what="all sessions")
                time.sleep(SETTLE_S)
                figures = _cpu(cluster, driver.pid, seconds)
            assert beating.stdout is not None
            with beating.stdout as said:
                late = msgspec.json.decode(said.readlines()[-1], type=_Latest)
            wait_until(lambda: not cluster.client.workers(), OPENING_S, what="the end of all sessions")
            return figures | {"late_ms": 1000 * late.latest_s}
        finally:
            cluster.stop()


@contextmanager
def _beating(cluster: Cluster, workers: int) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.beating", str(workers)],
        env=cluster.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "beating\n"
        yield process
        process.stdin.close()
        process.wait(OPENING_S)
    finally:
        process.kill()
        process.wait()


def _cpu(cluster: Cluster, driver_pid: int, seconds: float) -> dict[str, float]:
    driver, redis = psutil.Process(driver_pid), psutil.Process(cluster.redis.info("server")["process_id"])
    before = [busy_s(process) for process in (driver, redis)]
    commands = _commands(cluster)
    start_s = time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - start_s
    after = [busy_s(process) for process in (driver, redis)]
    shares = [100 * (end - begin) / passed_s for begin, end in zip(before, after, strict=True)]
    return {
        "driver_percent": shares[0],
        "redis_percent": shares[1],
        "commands_per_s": (_commands(cluster) - commands) / passed_s,
        "driver_mib": driver.memory_info().rss / 2**20,
        "redis_mib": cluster.redis.info("memory")["used_memory"] / 2**20,
    }


def busy_s(process: psutil.Process) -> float:
    """CPU seconds of a process since it started."""
    times = process.cpu_times()
    return times.user + times.system


def _commands(cluster: Cluster) -> int:
    return int(cluster.redis.info("stats")["total_commands_processed"])

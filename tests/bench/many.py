"""The most memory that each process has while very many requests go through, at most a window of them at once."""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.bench.windowed import Windowed
from tests.support.cluster import Cluster

SETTINGS = {
    "STOKER_SIMULATED_TOKENS_PER_S": "0",
    "STOKER_SIMULATED_SLOTS": "256",
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_LOG_LEVEL": "WARNING",
}


def measure_many(count: int, timeout_s: float = 1_800.0) -> dict[str, float]:
    """Seconds, requests per second, and the peak memory in MiB of client, driver, worker and Redis.

    Raises:
        AssertionError: an output is missing, came twice, or is a failure.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        cluster = Cluster(Path(folder), SETTINGS, fsync="everysec")
        try:
            driver, worker = cluster.start_driver(), cluster.start_worker("a")
            cluster.ready()
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.windowed", str(count)],
                env=cluster.environment(),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=True,
            )
            found = msgspec.json.decode(done.stdout, type=Windowed)
            assert (found.missing, found.twice, found.failed) == (0, 0, 0), found
            return {
                "requests": count,
                "seconds": found.seconds,
                "requests_per_s": count / found.seconds,
                "client_mib": found.client_mib,
                "driver_mib": _peak_mib(driver.pid),
                "worker_mib": _peak_mib(worker.child_pid),
                "redis_mib": cluster.redis.info("memory")["used_memory_peak"] / 2**20,
            }
        finally:
            cluster.stop()


def _peak_mib(pid: int) -> float:
    """The most resident memory that a process has had, by the kernel's count."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024

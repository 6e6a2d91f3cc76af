"""Stoker as somebody runs it: a server, a driver and workers as processes of their own, with the settings' defaults."""

from collections.abc import Mapping
from pathlib import Path

from tests.bench.peer import FSYNC
from tests.support.cluster import Cluster

# What the tests' cluster changes to be quick, as it is by default.
DEFAULTS = {
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_STALL_TIMEOUT": "60",
    "STOKER_RESTART_BACKOFF": "0.5",
    "STOKER_SIMULATED_FAULTS": "0",
    "STOKER_LOG_LEVEL": "WARNING",
}


def install(folder: Path, workers: int, settings: Mapping[str, str], start_timeout_s: float = 120.0) -> Cluster:
    """A running installation with so many ready workers; `stop` it."""
    cluster = Cluster(folder, {**DEFAULTS, **settings}, fsync=FSYNC)
    try:
        cluster.start_driver()
        for number in range(workers):
            cluster.start_worker(f"w{number}")
        cluster.ready(timeout=start_timeout_s)
    except BaseException:
        cluster.stop()
        raise
    return cluster

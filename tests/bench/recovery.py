"""How long a death takes to be made good, with real processes and the simulated engine."""

import os
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from broker.records import Session
from driver import Job, SamplingParams
from tests.bench.summary import Summary, summarise
from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

LONG = SamplingParams(max_tokens=1_000)  # 10 s at the cluster's speed
# As by default, but for the pause before a restart.
SETTINGS = {
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_RESTART_BACKOFF": "0",
}


def measure_crash(rounds: int, *, spare: bool) -> Summary:
    """From SIGKILL of a worker's process until another process has claimed a request that it held."""
    with _cluster(3 if spare else 2) as cluster:
        return summarise([_crash(cluster, spare=spare) for _ in range(rounds)])


def measure_killed_worker(rounds: int) -> Summary:
    """From SIGKILL of supervisor and process until its requests are released."""
    with _cluster(2) as cluster:
        return summarise([_kill_worker(cluster) for _ in range(rounds)])


@contextmanager
def _cluster(workers: int) -> Generator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        cluster = Cluster(Path(folder), SETTINGS)
        try:
            cluster.start_driver()
            for i in range(workers):
                cluster.start_worker(f"w{i}")
            cluster.ready()
            yield cluster
        finally:
            cluster.stop()


def _crash(cluster: Cluster, *, spare: bool) -> float:
    # One long request a worker keeps it busy; a spare worker gets none.
    job = cluster.client.submit(["long"] * (len(cluster.workers) - spare), LONG)
    victim = _busy_session(cluster, job)
    hurt_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: _claimed_elsewhere(cluster, job, victim), what="a claim by another session")
    seconds = time.monotonic() - hurt_s
    _clear(cluster, job)
    return seconds


def _kill_worker(cluster: Cluster) -> float:
    job = cluster.client.submit(["long"] * len(cluster.workers), LONG)
    victim = _busy_session(cluster, job)
    name = victim.worker.partition("@")[0]
    hurt_s = time.monotonic()
    worker = cluster.workers[name]
    worker.send_both(signal.SIGKILL)
    wait_until(lambda: not cluster.store.queries.batches(victim.id), what="the release of its batches")
    seconds = time.monotonic() - hurt_s
    worker.wait()
    cluster.start_worker(name)
    _clear(cluster, job)
    return seconds


def _busy_session(cluster: Cluster, job: Job) -> Session:
    wait_until(lambda: job.progress().running == job.progress().total, what="all requests in hand")
    rows = wait_until(lambda: [row for row in cluster.client.workers() if row.running], what="a busy worker")
    return rows[0]


def _claimed_elsewhere(cluster: Cluster, job: Job, victim: Session) -> bool:
    """Whether another session has claimed a batch of suspects."""
    batches = [b for row in cluster.client.workers() for b in cluster.store.queries.batches(row.id)]
    return any(b.job == job.id and b.isolated and b.state == "claimed" and b.session != victim.id for b in batches)


def _clear(cluster: Cluster, job: Job) -> None:
    job.cancel()
    job.get(timeout=30)
    cluster.ready()
    wait_until(lambda: not any(row.running for row in cluster.client.workers()), what="idle workers")

"""How long a user waits: for the first output of a cold system, for a killed worker, for the client's import."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.process import stoker_command
from tests.support.waiting import wait_until

IMPORT = """
import sys, time
wall_s, cpu_s = time.perf_counter(), time.process_time()
from driver import Client
imported_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
Client("redis://127.0.0.1:1/0")
first_s = time.perf_counter()
print(imported_s - wall_s, cpu_s, first_s - imported_s, "torch" in sys.modules, "celery" in sys.modules)
"""
IMPORTS = 5
START_TIMEOUT_S = 120.0


def measure_import() -> dict[str, float]:
    """Milliseconds that `from driver import Client` takes in a fresh process, by the clock and by CPU; medians.

    `first_client_ms` is the time to make the first client, which loads redis-py.

    Raises:
        AssertionError: the client loads torch or Celery.
    """
    found: list[list[str]] = []
    for _ in range(IMPORTS):
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    assert all(row[3:] == ["False", "False"] for row in found), found
    wall, cpu, first = (statistics.median(1000 * float(row[column]) for row in found) for column in range(3))
    return {"import_ms": wall, "import_cpu_ms": cpu, "first_client_ms": first}


def measure_cold_start(engine: str, model: str = "") -> dict[str, float]:
    """Seconds from `stoker generate --local` until its first character: everything starts from nothing."""
    options = ["--engine", engine, *(["--model", model] if model else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    start_s = time.monotonic()
    with subprocess.Popen(
        stoker_command("generate", "Hello", "--local", "--stream", "--max-tokens", "4", *options),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.monotonic() - start_s
        rest, errors = process.communicate(timeout=START_TIMEOUT_S)
    assert first, errors
    assert process.returncode == 0, rest + errors
    return {"first_output_s": seconds}


def measure_restart() -> dict[str, float]:
    """Seconds from the SIGKILL of a worker's process until its successor is ready, with the simulated engine."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start_driver()
            worker = cluster.start_worker("a")
            (before,) = cluster.ready()
            start_s = time.monotonic()
            os.kill(worker.child_pid, signal.SIGKILL)
            wait_until(lambda: any(row.id != before.id for row in cluster.ready("a")), what="its successor")
            return {"restart_s": time.monotonic() - start_s}
        finally:
            cluster.stop()

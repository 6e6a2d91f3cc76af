"""What a request costs on its way through Stoker, without a model: requests/s, and CPU time of each process."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from driver import SamplingParams
from tests.bench.echo_engine import install
from tests.support.cluster import Cluster

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600.0
# As they are without any setting; the tests' own are much quicker.
SETTINGS = {
    "STOKER_HEARTBEAT_INTERVAL": "1",
    "STOKER_HEARTBEAT_TIMEOUT": "10",
    "STOKER_DETECTION_INTERVAL": "1",
    "STOKER_STALL_TIMEOUT": "60",
    "STOKER_LOG_LEVEL": "WARNING",
    "STOKER_SIMULATED_FAULTS": "0",
}


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """One run. CPU is in seconds of one core, from the call of `submit` until the last output was read and checked."""

    requests: int
    seconds: float
    submit_s: float  # of these, until `submit` had returned
    client_cpu_s: float
    driver_cpu_s: float
    worker_cpu_s: float
    redis_cpu_s: float
    client_mib: float  # resident memory at the end
    redis_mib: float  # the most that Redis held

    @property
    def requests_per_s(self) -> float:
        """End to end, by the clock."""
        return self.requests / self.seconds

    @property
    def cpu_s(self) -> float:
        """Of all processes together."""
        return self.client_cpu_s + self.driver_cpu_s + self.worker_cpu_s + self.redis_cpu_s


class OverheadBench:
    """A driver and one worker, whose engine costs nothing, in processes of their own. `close` ends them."""

    def __init__(self, *, fsync: str = "everysec") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stoker-bench-")
        folder = Path(self._folder.name)
        self.cluster = Cluster(folder, {**SETTINGS, **install(folder / "packages", str(ROOT))}, fsync=fsync)
        try:
            self._driver = self.cluster.start_driver()
            self._worker = self.cluster.start_worker("a")
            self.cluster.ready()
        except BaseException:
            self.close()
            raise

    def measure(self, requests: int, *, params: SamplingParams | None = None, size: int = 500) -> Overhead:
        """One job of so many different prompts of `size` bytes, all outputs read back and compared."""
        prompts = make_prompts(requests, size)
        processes = self.processes()
        before = [_cpu_s(process) for process in processes]
        client = time.process_time()
        started_s = time.monotonic()
        job = self.cluster.client.submit(prompts, params)
        submitted_s = time.monotonic()
        outputs = job.get(TIMEOUT_S)
        check([output.text for output in outputs], prompts)
        seconds = time.monotonic() - started_s
        client = time.process_time() - client
        driver, worker, redis = (_cpu_s(p) - cpu_s for p, cpu_s in zip(processes, before, strict=True))
        return Overhead(
            requests=requests,
            seconds=seconds,
            submit_s=submitted_s - started_s,
            client_cpu_s=client,
            driver_cpu_s=driver,
            worker_cpu_s=worker,
            redis_cpu_s=redis,
            client_mib=psutil.Process().memory_info().rss / 2**20,
            redis_mib=self.cluster.redis.info("memory")["used_memory_peak"] / 2**20,
        )

    def processes(self) -> tuple[psutil.Process, psutil.Process, psutil.Process]:
        """Driver, the worker's process that generates, Redis."""
        worker = psutil.Process(self._worker.child_pid)
        server = psutil.Process(self.cluster.server.pid).children()[0]
        return psutil.Process(self._driver.pid), worker, server

    def close(self) -> None:
        """End everything."""
        try:
            self.cluster.stop()
        finally:
            self._folder.cleanup()


def measure_overhead(requests: int = 20_000, rounds: int = 1, *, size: int = 500) -> list[Overhead]:
    """So many runs, one after the other, through the same processes, after a small one that warms them."""
    bench = OverheadBench()
    try:
        bench.measure(1_000, size=size)
        return [bench.measure(requests, size=size) for _ in range(rounds)]
    finally:
        bench.close()


def make_prompts(count: int, size: int) -> list[str]:
    """Prompts of so many bytes that all differ."""
    filling = "lorem ips " * (size // 10 + 1)
    return [f"{number} {filling}"[:size] for number in range(count)]


def check(texts: Sequence[str], prompts: Sequence[str]) -> None:
    """Fail unless every prompt came back, in its place."""
    assert len(texts) == len(prompts), f"{len(texts)} outputs of {len(prompts)}"
    wrong = [place for place, (text, prompt) in enumerate(zip(texts, prompts, strict=True)) if text != prompt]
    assert not wrong, f"{len(wrong)} outputs are wrong, the first is {wrong[0]}"


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system

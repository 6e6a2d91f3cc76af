"""What heartbeats and ledger cost: CPU of every process of a running system."""

import time

import psutil

from driver import Driver, DriverSettings, SamplingParams
from tests.bench.summary import Summary, summarise


def measure_steady(workers: int, seconds: float) -> dict[str, Summary]:
    """CPU in percent of one core: of each worker (supervisor and child), of the driver, and of Redis."""
    environment = {"STOKER_SIMULATED_TOKENS_PER_S": "40"}
    settings = DriverSettings(initial_worker_count=workers, engine="simulated")
    with Driver(settings, worker_environment=environment) as driver:
        driver.wait_until_ready()
        figures = {f"idle: {label}": summary for label, summary in _measure(seconds).items()}
        job = driver.client.submit([f"p {i}" for i in range(workers * 1_000)], SamplingParams(max_tokens=100))
        time.sleep(2.0)
        before = job.progress()
        figures |= {f"busy: {label}": summary for label, summary in _measure(seconds).items()}
        rate = (job.progress().done - before.done) / seconds
        figures["busy: requests/s (32 slots of 40 tokens/s a worker)"] = summarise([rate])
        job.cancel()
    return figures


def _measure(seconds: float) -> dict[str, Summary]:
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    before = [_cpu_s(process) for process in processes]
    time.sleep(seconds)
    used: dict[str, list[float]] = {}
    for process, start_s in zip(processes, before, strict=True):
        percent = (_cpu_s(process) - start_s) / seconds * 100
        used.setdefault(_role(process), []).append(percent)
    workers = [sum(pair) for pair in zip(used["supervisor"], used["worker process"], strict=True)]
    return {
        "a worker (supervisor and process)": summarise(workers),
        "driver": summarise(used["driver"]),
        "Redis": summarise([sum(used["redis"])]),
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "gpu_worker.bootstrap" in command:
        return "worker process"
    if "-m gpu_worker" in command:
        return "supervisor"
    return "redis" if "valkey" in command else "driver"

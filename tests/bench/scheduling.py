"""What a small job and a new worker wait for while a huge job keeps all workers busy."""

import time

from broker.states import WorkerState
from driver import Client, Driver, DriverSettings, SamplingParams
from tests.bench.summary import Summary, summarise
from tests.support.waiting import wait_until

TOKENS_PER_S = 40
SLOTS = 8


def measure_scheduling(workers: int, requests: int, rounds: int) -> dict[str, Summary]:
    """Seconds from submission to the first output, and from a new worker's being ready to its first work."""
    environment = {
        "STOKER_SIMULATED_TOKENS_PER_S": str(TOKENS_PER_S),
        "STOKER_SIMULATED_SLOTS": str(SLOTS),
    }
    settings = DriverSettings(initial_worker_count=workers, engine="simulated")
    with Driver(settings, worker_environment=environment) as driver:
        driver.wait_until_ready()
        # Of different lengths: equal ones would all end at the same moment, again and again.
        params = [SamplingParams(max_tokens=20 + i % 81) for i in range(requests)]
        huge = driver.client.submit([f"p {i}" for i in range(requests)], params)
        wait_until(lambda: huge.progress().running >= workers * SLOTS, 60, what="all workers are busy")
        small = [_first_output_s(driver.client) for _ in range(rounds)]
        driver.scale_workers(workers + 1)
        joined = _until_it_works_s(driver.client, workers + 1)
        huge.cancel()
    return {
        f"a job of one short request behind {requests} others: its output": summarise(small),
        "a worker that joins: from ready to work in hand": summarise([joined]),
    }


def _first_output_s(client: Client) -> float:
    started_s = time.monotonic()
    client.submit(["small"], SamplingParams(max_tokens=2)).get(60)
    return time.monotonic() - started_s


def _until_it_works_s(client: Client, workers: int) -> float:
    def ready() -> bool:
        return sum(row.state == WorkerState.READY for row in client.workers()) == workers

    wait_until(ready, 60, what="the new worker is ready")
    started_s = time.monotonic()
    wait_until(lambda: all(row.inhand_requests for row in client.workers()), 60, what="all workers have work")
    return time.monotonic() - started_s

"""The mix by real processes: a cluster of a driver and workers with the simulated engine."""

import signal

from broker.messages import Request, SamplingParams
from driver import Job
from tests.simulate.mix import MIX, PROMPT_TOKENS, End, MixedJob
from tests.support.cluster import Cluster
from tests.support.committed import committed


def run_mix(cluster: Cluster, tokens: int, timeout_s: float) -> list[End]:
    """Run the mix, and say when each request was done. The driver sees all jobs at once, as in the simulation."""
    (driver,) = [driver for driver in cluster.drivers if driver.is_running]  # others were ended by earlier tests
    driver.send(signal.SIGSTOP)
    try:
        jobs = [_submit(cluster, place, job, tokens) for place, job in enumerate(MIX)]
    finally:
        driver.send(signal.SIGCONT)
    start_ms = cluster.store.queries.server_time_ms()
    for job in jobs:
        for output in job.as_completed(timeout_s):
            assert output.error is None, output.error
    ends = [end for place, job in enumerate(jobs) for end in _ends(cluster, place, job, start_ms)]
    return sorted(ends, key=lambda end: end.at_s)


def _submit(cluster: Cluster, place: int, job: MixedJob, tokens: int) -> Job:
    """No two prompts are equal; each is as long as in the simulation, and so is each text."""
    requests = [
        Request(input_ids=(place, index, PROMPT_TOKENS), params=SamplingParams(max_tokens=text))
        for index, text in enumerate(job.texts(tokens))
    ]
    return cluster.client.submit(
        requests, user=job.user, priority=job.priority, weight=job.weight, deadline=job.deadline_s or None
    )


def _ends(cluster: Cluster, place: int, job: Job, start_ms: int) -> list[End]:
    return [
        End(at_s=(at_ms - start_ms) / 1000, job=place, tokens=output.usage.completion_tokens)
        for at_ms, output in committed(cluster, job)
    ]

"""A worker dies while it runs a request for many like it: each of them gets its one output all the same."""

import os
import signal

from broker.messages import OutputSource, Request, SamplingParams
from tests.support.verdict import undisturbed
from tests.support.waiting import wait_until


def test_a_worker_that_runs_one_for_many_is_killed(cluster):
    params = SamplingParams(max_tokens=200, temperature=0)
    asked = [Request(params=params, prompt=f"prompt {index % 2}") for index in range(40)]
    job = cluster.client.submit(asked, user="ann")
    wait_until(lambda: cluster.store.queries.follower_count(job.id) == 38, what="those that wait for their like")
    name = cluster.busy_one()

    os.kill(cluster.workers[name].child_pid, signal.SIGKILL)

    outputs = list(job.as_completed(60))
    assert sorted(output.index for output in outputs) == list(range(40))
    expected = [completion.text for completion in undisturbed(asked[:2])]
    assert all(output.text == expected[output.index % 2] for output in outputs)
    assert [output.source for output in outputs].count(OutputSource.SHARED) == 38
    progress = job.progress()
    assert (progress.done, progress.failed, progress.shared) == (40, 0, 38)
    assert (progress.completion_tokens, progress.saved_tokens) == (400, 7600)
    assert cluster.store.queries.load().requests == 0


def test_a_full_queue_drains_into_a_waiting_client(make_cluster):
    cluster = make_cluster({"STOKER_MAX_PENDING_REQUESTS": "20", "STOKER_SIMULATED_TOKENS_PER_S": "1000"})
    cluster.start_driver()
    cluster.start_worker("a")
    cluster.ready()
    asked = [f"prompt {index}" for index in range(100)]
    job = cluster.client.submit(asked, SamplingParams(max_tokens=5), block=True, timeout=60)
    assert sorted(output.index for output in job.as_completed(60)) == list(range(100))
    assert cluster.store.queries.policy().max_pending_requests == 20
    assert cluster.store.queries.load().requests == 0

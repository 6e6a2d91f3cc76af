"""Long generations go on from saved tokens: a death costs a bounded number of them."""

import os
import signal

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

CHECKPOINT_TOKENS = 64  # the default


def test_a_death_in_a_long_generation_costs_at_most_checkpoint_tokens(cluster):
    asked = requests(1, tokens=500)
    base = {row.worker: row.generated_tokens for row in cluster.client.workers()}
    job = cluster.client.submit(asked)
    busy = wait_until(lambda: next((row for row in cluster.client.workers() if row.running), None))
    name = busy.worker.removesuffix("@e2e")
    cluster.busy(name, tokens=250)
    os.kill(cluster.workers[name].child_pid, signal.SIGKILL)
    at_death = next(row for row in cluster.client.workers() if row.id == busy.id).generated_tokens - base[busy.worker]

    outputs = assert_each_done_once(cluster, job, asked)

    other = next(row for row in cluster.client.workers() if row.worker == outputs[0].worker_id)
    cluster.settled()
    done_after = next(row.generated_tokens for row in cluster.client.workers() if row.id == other.id)
    if other.worker != busy.worker:
        done_after -= base[other.worker]
    wasted = at_death + done_after - len(outputs[0].token_ids)
    assert at_death >= 250
    assert wasted <= CHECKPOINT_TOKENS

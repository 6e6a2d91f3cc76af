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
    child = cluster.workers[name].child_pid
    os.kill(child, signal.SIGSTOP)  # a session that is dead may be gone before anybody looks
    at_death = next(row for row in cluster.client.workers() if row.id == busy.id).generated_tokens - base[busy.worker]
    os.kill(child, signal.SIGKILL)

    outputs = assert_each_done_once(cluster, job, asked)

    cluster.settled()
    other = cluster.session(outputs[0].worker_id.removesuffix("@e2e"))
    done_after = other.generated_tokens
    if other.worker != busy.worker:
        done_after -= base[other.worker]
    wasted = at_death + done_after - len(outputs[0].token_ids)
    assert at_death >= 250
    assert wasted <= CHECKPOINT_TOKENS

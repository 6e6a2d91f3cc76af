"""Workers that are asked to end: they finish what fits, give back the rest, and nobody counts that as a death."""

import os
import signal

import pytest

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

OWN = {"STOKER_SERVED_MODEL_NAME": "of-the-drained"}
MODEL = OWN["STOKER_SERVED_MODEL_NAME"]


def start(cluster, name, **settings):
    worker = cluster.start_worker(name, settings=OWN | settings)
    cluster.ready(name)
    return worker


def attempts(cluster, job):
    """Deaths counted against requests of a job that still wait."""
    return cluster.redis.hgetall(cluster.store.keys.job(job.id).attempts)


def test_sigterm_finishes_what_is_in_hand(cluster):
    worker = start(cluster, "c")
    asked = requests(16, tokens=150)
    job = cluster.client.submit(asked, model=MODEL)
    cluster.busy("c")

    worker.send(signal.SIGTERM)

    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"c@e2e"}
    assert worker.wait() == 0


def test_what_does_not_fit_into_the_drain_goes_on_elsewhere_from_its_checkpoint(cluster):
    slow = {"STOKER_SIMULATED_SLOTS": "8", "STOKER_SIMULATED_TOKENS_PER_S": "25"}  # no request ends meanwhile
    worker = start(cluster, "c", STOKER_DRAIN_TIMEOUT="0.3", **slow)
    asked = requests(9, tokens=300)  # one more than run at once
    job = cluster.client.submit(asked, model=MODEL)
    cluster.busy("c", tokens=200)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    saved = sum(len(tokens) for tokens in cluster.saved_tokens(job).values())
    assert saved >= 200
    assert job.progress().pending == len(asked)
    assert attempts(cluster, job) == {}
    start(cluster, "d")
    outputs = assert_each_done_once(cluster, job, asked)
    cluster.settled()
    generated = cluster.session("d").generated_tokens
    assert generated == sum(len(output.token_ids) for output in outputs) - saved


def test_the_drain_command_ends_a_worker_and_waits_for_it(cluster):
    worker = start(cluster, "c")
    asked = requests(8, tokens=100)
    job = cluster.client.submit(asked, model=MODEL)
    cluster.busy("c")

    drained = cluster.stoker("drain", "c@e2e")

    assert (drained.returncode, drained.stdout) == (0, "c@e2e has ended\n")
    assert worker.wait() == 0
    assert_each_done_once(cluster, job, asked)


def test_the_drain_command_names_who_is_alive_when_there_is_no_such_worker(cluster):
    drained = cluster.stoker("drain", "nobody@e2e")

    assert drained.returncode == 2
    assert drained.stderr == "stoker: error: no worker 'nobody@e2e' is alive (alive: a@e2e, b@e2e)\n"


@pytest.mark.parametrize("whom", ["child", "supervisor"])
def test_sigquit_loses_and_repeats_no_request(cluster, whom):
    worker = start(cluster, "c")
    asked = requests(40, tokens=100)
    job = cluster.client.submit(asked, model=MODEL)
    cluster.busy("c")
    before = cluster.session("c")

    os.kill(worker.child_pid if whom == "child" else worker.pid, signal.SIGQUIT)
    start(cluster, "d")

    wait_until(lambda: (session := cluster.session("c")) is None or session.id != before.id, what="another session")
    assert_each_done_once(cluster, job, asked)
    assert cluster.store.queries.job(job.id).dropped == 0

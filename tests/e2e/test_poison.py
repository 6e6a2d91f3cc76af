"""Requests that kill their worker are found, given up and kept; their neighbours are all done."""

from tests.support.verdict import assert_each_done_once, requests

POISON = 100


def test_a_request_that_kills_its_worker_among_200_is_given_up_alone(cluster):
    asked = requests(200, tokens=10)
    asked[POISON] = requests(1, tokens=10, about="<<die>>")[0]

    job = cluster.client.submit(asked)
    outputs = assert_each_done_once(cluster, job, asked, errors={POISON: "worker_crash"}, timeout=90)

    assert "its worker died 3 times" in outputs[POISON].error.message
    assert "SIGKILL" in outputs[POISON].error.message
    _assert_listed_and_tried_again(cluster, f"{job.id}/{POISON}", asked[POISON])


def _assert_listed_and_tried_again(cluster, name, request):
    listed = cluster.stoker("quarantine")
    assert listed.returncode == 0
    assert name in listed.stdout
    assert request.prompt in listed.stdout

    retried = cluster.stoker("quarantine", "retry", name)
    assert retried.returncode == 0, retried.stderr
    again = cluster.client.job(retried.stdout.split()[-1])
    assert again.progress().total == 1
    assert_each_done_once(cluster, again, [request], errors={0: "worker_crash"})

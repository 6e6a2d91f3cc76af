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


def test_a_request_that_takes_its_supervisor_along_is_given_up_alone(make_cluster):
    cluster = make_cluster({"STOKER_MAX_LOSSES": "1", "STOKER_MAX_ATTEMPTS": "2", "STOKER_HEARTBEAT_TIMEOUT": "60"})
    cluster.start_driver()
    for name in ("a", "b", "c", "d"):
        cluster.start_worker(name)
    cluster.ready()
    asked = requests(40, tokens=10)
    asked[17] = requests(1, tokens=10, about="<<die together>>")[0]

    job = cluster.client.submit(asked)
    outputs = assert_each_done_once(cluster, job, asked, errors={17: "worker_crash"}, timeout=90)

    assert "its worker died 3 times while running it, the last time alone" in outputs[17].error.message
    assert "its connection is closed" in outputs[17].error.message
    assert sum(worker.is_running for worker in cluster.workers.values()) == 1
    assert f"{job.id}/17" in cluster.stoker("quarantine").stdout


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

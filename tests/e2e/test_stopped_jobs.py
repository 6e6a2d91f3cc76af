"""Jobs that are cancelled or past their deadline: every request has its output, and the worker is free again."""

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

NOBODY = "a-model-that-nobody-serves"
LONG = 3000  # tokens, half a minute


def all_failed(asked, code):
    return dict.fromkeys(range(len(asked)), code)


def assert_slots_are_free(cluster, sessions):
    """The workers are the same as before, hold nothing, and run the next job."""
    cluster.settled()
    assert {row.id for row in cluster.client.workers()} == sessions
    asked = requests(40, tokens=10, about="next")
    assert_each_done_once(cluster, cluster.client.submit(asked), asked)


def test_cancelling_a_job_that_waits_ends_all_its_requests(cluster):
    asked = requests(20, tokens=10)
    job = cluster.client.submit(asked, model=NOBODY)

    assert job.cancel()

    outputs = assert_each_done_once(cluster, job, asked, errors=all_failed(asked, "cancelled"))
    assert all(output.text == "" for output in outputs)
    assert not job.cancel(), "it is done"


def test_cancelling_a_running_job_keeps_the_text_so_far_and_frees_the_slots(cluster):
    sessions = {row.id for row in cluster.client.workers()}
    asked = requests(100, tokens=LONG)
    job = cluster.client.submit(asked)
    cluster.busy("a", tokens=100)

    job.cancel()

    outputs = assert_each_done_once(cluster, job, asked, errors=all_failed(asked, "cancelled"))
    assert sum(bool(output.text) for output in outputs) >= 32
    assert any(not output.text for output in outputs), "some had not begun"
    assert_slots_are_free(cluster, sessions)


def test_a_deadline_ends_what_waits(cluster):
    asked = requests(5, tokens=10)
    job = cluster.client.submit(asked, model=NOBODY, deadline=0.3)

    outputs = assert_each_done_once(cluster, job, asked, errors=all_failed(asked, "deadline_exceeded"))
    assert all(output.text == "" for output in outputs)


def test_a_deadline_during_generation_keeps_the_text_so_far_and_frees_the_slots(cluster):
    sessions = {row.id for row in cluster.client.workers()}
    asked = requests(20, tokens=LONG)
    job = cluster.client.submit(asked, deadline=4)

    outputs = assert_each_done_once(cluster, job, asked, errors=all_failed(asked, "deadline_exceeded"))

    assert sum(bool(output.text) for output in outputs) >= 10
    assert_slots_are_free(cluster, sessions)


def test_a_job_within_its_deadline_is_not_touched(cluster):
    asked = requests(5, tokens=10)
    assert_each_done_once(cluster, cluster.client.submit(asked, deadline=60), asked)


def test_a_running_job_can_be_cancelled_while_no_driver_lives(cluster):
    asked = requests(8, tokens=LONG)
    job = cluster.client.submit(asked)
    wait_until(lambda: job.progress().running == len(asked))
    cluster.end_drivers()

    job.cancel()

    assert_each_done_once(cluster, job, asked, errors=all_failed(asked, "cancelled"))

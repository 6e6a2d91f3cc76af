"""Work that cannot start says why within seconds, wherever a person looks, and starts when what is missing appears."""

import json
import logging

import pytest

from driver.errors import NotFinishedError
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

NO_DRIVER = "no driver is running: start one with `stoker driver` (or `stoker up`)"
NO_WORKER = "no worker for any model is alive: start one with `stoker worker`"
LINE = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello", "max_tokens": 3}}


@pytest.fixture
def batch_file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    return path


def assert_told(cluster, caplog, job, reason):
    """`Job.get`, its warning and `stoker status` all give the reason."""
    with caplog.at_level(logging.WARNING, "stoker"), pytest.raises(NotFinishedError) as late:
        job.get(timeout=3)
    assert str(late.value) == f"job {job.id} is not done after 3 s: 0 of {job.progress().total} requests are; {reason}"
    assert isinstance(late.value, TimeoutError)
    assert [record.getMessage() for record in caplog.records if record.name == "stoker"] == [
        f"job {job.id} waits: {reason}"
    ]


def test_without_driver_and_worker_everything_says_so_and_starts_when_they_appear(
    make_cluster, caplog, batch_file, tmp_path
):
    cluster = make_cluster()
    job = cluster.client.submit(asked := requests(4, tokens=3))
    batch = cluster.start_stoker("batch", str(batch_file), str(tmp_path / "out.jsonl"))
    assert_told(cluster, caplog, job, NO_DRIVER)
    status = cluster.stoker("status")
    assert status.returncode == 1
    assert f"note    {NO_DRIVER}" in status.stdout
    wait_until(lambda: f"stoker: waiting: {NO_DRIVER}" in batch.log)

    cluster.start_driver()
    wait_until(cluster.store.has_leader)
    wait_until(lambda: f"stoker: waiting: {NO_WORKER}" in batch.log)
    assert json.loads(cluster.stoker("status", "--json").stdout)["obstacle"] == NO_WORKER

    cluster.start_worker("a")
    assert_each_done_once(cluster, job, asked)
    assert batch.wait() == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["custom_id"] == "one"
    assert cluster.stoker("status").returncode == 0


def test_a_model_that_nobody_serves_is_named_with_those_that_are(cluster, caplog):
    job = cluster.client.submit(asked := requests(4, tokens=3), model="llama-9000")
    reason = "no worker for model 'llama-9000' is alive (workers serve: smollm2-135m): start one with `stoker worker`"

    assert_told(cluster, caplog, job, reason)

    cluster.start_worker("c", settings={"STOKER_SERVED_MODEL_NAME": "llama-9000"})
    outputs = assert_each_done_once(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"c@e2e"}


def test_generate_gives_up_after_its_timeout_and_says_why(cluster):
    late = cluster.stoker("generate", "Hello", "--model", "llama-9000", "--timeout", "1")

    assert late.returncode == 1
    assert "is not done after 1 s" in late.stderr
    assert "no worker for model 'llama-9000' is alive" in late.stderr

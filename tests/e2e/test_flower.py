"""Flower, Celery's monitor, shows each worker by its name and every batch as a task."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until


@pytest.fixture
def flower(cluster):
    """Asks the HTTP API of a Flower that watches the cluster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = cluster.start_stoker("flower", "--port", str(port))

    def ask(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode() if body else None)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            assert process.is_running, process.log
            return {}

    wait_until(lambda: set(ask("/api/workers?refresh=1")) == {"a@e2e", "b@e2e"}, 60, what=lambda: process.log)
    yield ask
    process.end()


def test_flower_shows_every_worker_by_its_name_before_it_has_work_and_sees_every_batch(cluster, flower):
    def shown():
        return {row["hostname"] for row in flower("/workers?json=1").get("data", []) if row["status"]}

    wait_until(lambda: shown() == {"a@e2e", "b@e2e"}, 60, what=lambda: f"{shown()}")
    asked = requests(64, tokens=200)  # as many as both run at once, long enough to be looked at
    job = cluster.client.submit(asked)
    wait_until(lambda: job.progress().pending == 0)
    rows = cluster.client.workers()
    batches = {batch.id: row.worker for row in rows for batch in cluster.store.queries.batches(row.id)}
    assert set(batches.values()) == {"a@e2e", "b@e2e"}
    assert_each_done_once(cluster, job, asked)

    def finished():
        tasks = flower("/api/tasks?limit=1000")
        return tasks if all(tasks.get(batch, {}).get("state") == "SUCCESS" for batch in batches) else None

    tasks = wait_until(finished, what=lambda: f"the tasks {batches} in {flower('/api/tasks')}")
    assert {tasks[batch]["name"] for batch in batches} == {"stoker.generate_batch"}
    assert {batch: tasks[batch]["worker"] for batch in batches} == batches
    assert all(asked[0].prompt not in json.dumps(task) for task in tasks.values()), "prompts stay in the ledger"


def test_flower_s_api_can_send_a_command_of_run_time_control_and_shows_its_answer(cluster, flower):
    def answer(*arguments, **options):
        body = {"args": arguments, "kwargs": options, "queue": "gpu.a@e2e"}
        task = flower("/api/task/send-task/stoker.control", body)["task-id"]
        done = wait_until(lambda: (info := flower(f"/api/task/info/{task}")).get("state") == "SUCCESS" and info)
        return done["result"]

    assert "'name': 'sleep'" in answer("sleep", finish=True)
    wait_until(lambda: cluster.session("a").state == "sleeping")
    assert "'state': 'sleeping'" in answer("check_health")
    assert "there is no command" in answer("explode")
    answer("wake")
    wait_until(lambda: cluster.session("a").state == "ready")

"""Workers come and go with the work: on one machine, by hand, and by a command; nothing is lost and nothing twice."""

import json
import os
import sys

import pytest

from broker.settings import BrokerSettings
from driver import Client, Driver, Request, SamplingParams
from driver.cli.scale import scale
from driver.errors import DriverStateError
from driver.settings import load_driver_settings
from tests.support.cluster import SETTINGS
from tests.support.process import Process, stoker_command
from tests.support.waiting import wait_until

QUICK = {
    "STOKER_DRAIN_TARGET": "2",
    "STOKER_SCALE_IN_COOLDOWN": "1",
    "STOKER_TREND_WINDOW": "1",
    "STOKER_SIMULATED_SLOTS": "4",
    "STOKER_WORKER_MONITOR_INTERVAL": "0.3",
}
ANSWER = SamplingParams(max_tokens=60, ignore_eos=True)
LONG_ANSWER = SamplingParams(max_tokens=250, ignore_eos=True)


def numbers(client):
    """Ready workers, and workers wanted."""
    ready = sum(row.state == "ready" for row in client.workers())
    return ready, client.store.scale.read().wanted


def assert_each_answered_once(client, job, count):
    outputs = job.get(timeout=60)
    assert [output.index for output in outputs] == list(range(count))
    assert all(output.error is None for output in outputs)
    assert client.store.queries.job(job.id).dropped == 0
    return outputs


@pytest.fixture
def quick(monkeypatch):
    for name, value in (SETTINGS | QUICK).items():
        monkeypatch.setenv(name, value)


def test_a_burst_makes_workers_and_its_end_drains_them(nothing_left, quick):
    with Driver(load_driver_settings(autoscale="1,3")) as driver:
        client = driver.wait_until_ready(30).client
        assert numbers(client)[0] == 1
        with pytest.raises(DriverStateError, match="autoscale"):
            driver.scale_workers(2)

        feed = client.open_job()
        job = client.job(feed.job_id)

        def add():
            feed.add([Request(prompt=f"prompt {feed.submitted + place}", params=ANSWER) for place in range(100)])

        def grown():
            if job.progress().pending < 60:  # 3,600 tokens; a worker makes 400 a second
                add()
            return numbers(client) == (3, 3)

        add()

        wait_until(grown, 60, what=lambda: f"three workers, not {numbers(client)}")
        feed.seal()
        outputs = assert_each_answered_once(client, job, feed.submitted)
        assert len({output.worker_id for output in outputs}) == 3
        wait_until(lambda: numbers(client) == (1, 1), what=lambda: f"one worker, not {numbers(client)}")


def test_people_scale_a_running_stoker_up(nothing_left, quick, tmp_path, capsys):
    up = Process(stoker_command("up", "--port", "0"), dict(os.environ), tmp_path / "up.log")
    wait_until(lambda: "ready    try: stoker generate" in up.log)
    url = next(line.split()[1] for line in up.log.splitlines() if line.startswith("broker "))
    try:
        scale("2", url, as_json=True)
        shown = json.loads(capsys.readouterr().out)
        assert (shown["mode"], shown["bounds"]) == ("manual", "2,2")
        with Client(settings=BrokerSettings(broker_url=url)) as client:
            follow_people(client)
    finally:
        assert up.end() == 0


def follow_people(client):
    wait_until(lambda: numbers(client) == (2, 2))
    job = client.submit([f"prompt {place}" for place in range(8)], LONG_ANSWER)
    wait_until(lambda: all(row.running for row in client.workers()))
    client.store.scale.set_auto(0, 1)  # in the middle of its work one of them goes
    assert_each_answered_once(client, job, 8)
    wait_until(lambda: numbers(client) == (0, 0), what=lambda: f"no worker, not {numbers(client)}")
    assert_each_answered_once(client, client.submit(["the first after a pause"], ANSWER), 1)
    client.store.scale.unset()
    wait_until(lambda: numbers(client)[1] == -1)


SCRIPT = """
import sys
with open(sys.argv[1], "a") as log:
    log.write(sys.argv[2] + "\\n")
"""


def test_a_driver_asks_a_command_for_workers(make_cluster, tmp_path):
    script, log = tmp_path / "scale.py", tmp_path / "asked"
    script.write_text(SCRIPT)
    cluster = make_cluster(QUICK)
    command = f"{sys.executable} {script} {log} {{n}}"
    cluster.start_driver(settings={"STOKER_SCALE_COMMAND": command, "STOKER_AUTOSCALE": "0,3"})

    job = cluster.client.submit(["one", "two"], ANSWER)
    wait_until(lambda: log.exists() and log.read_text().split()[-1:] == ["1"])
    cluster.start_worker("a")
    job.get(timeout=60)

    wait_until(lambda: log.read_text().split()[-1:] == ["0"])
    wait_until(lambda: cluster.redis.llen(cluster.store.keys.scale_wanted) == 0)
    cluster.store.scale.set_manual(2)
    wait_until(lambda: log.read_text().split()[-1:] == ["2"])
    wait_until(lambda: cluster.redis.llen(cluster.store.keys.scale_wanted) == 2)

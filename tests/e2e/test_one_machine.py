"""Everything on one machine, started by one object or one command: it ends as one, however it ends."""

import json
import os
import re
import signal
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from driver import Driver, DriverSettings
from driver.errors import DriverStateError, NotFinishedError, WorkerStartError
from tests.support.cluster import SETTINGS
from tests.support.process import Process, descendants, marked_processes, stoker_command
from tests.support.waiting import stays_true, wait_until


def assert_nothing_left(port=None):
    wait_until(lambda: not marked_processes(), what=lambda: f"the end of {marked_processes()}")
    assert [path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("stoker")] == []
    if port is not None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def alone(standing):
    """No shared cluster runs beside this test."""
    standing.stop()
    assert_nothing_left()
    yield
    assert_nothing_left()


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def max_tokens():
    """Of the request in `source`."""
    return 3


@pytest.fixture
def source(tmp_path, max_tokens):
    """A batch file of one line."""
    path = tmp_path / "in.jsonl"
    body = {"prompt": "Hello", "max_tokens": max_tokens}
    path.write_text(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    return path


@pytest.fixture
def start(tmp_path):
    """Starts a `stoker` command that brings its own broker."""
    started = []

    def run(*arguments, **settings):
        log = tmp_path / f"{len(started)}.log"
        started.append(Process(stoker_command(*arguments), {**os.environ, **SETTINGS, **settings}, log))
        return started[-1]

    yield run
    for process in started:
        process.end()


def test_ten_starts_and_stops_leave_nothing(alone):
    for place in range(10):
        with Driver(DriverSettings(engine="simulated")) as driver:
            port = urlsplit(driver.broker_url).port
            if place % 2:  # the others are stopped while they still start
                task = driver.wait_until_ready(30).submit_task({"prompt": f"hello {place}", "max_new_tokens": 2})
                assert len(driver.get_result(task, timeout=30)["output_ids"]) == 2
        assert_nothing_left(port)


def test_ctrl_c_ends_stoker_up_and_all_that_it_started(alone, start, port):
    up = start("up", "--workers", "2", "--port", str(port))
    wait_until(lambda: f"ready    try: stoker generate --broker redis://127.0.0.1:{port}/0 '" in up.log)

    up.send(signal.SIGINT)

    assert up.wait() == 0
    assert "Traceback" not in up.log
    assert_nothing_left(port)


def test_a_port_that_is_taken_is_one_line(alone, start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = start("up", "--port", str(port))
        assert up.wait() == 1
    (line,) = up.log.splitlines()
    assert line.startswith(f"stoker: error: port {port} on 127.0.0.1 is in use")


def test_the_processes_of_a_killed_stoker_up_end_by_themselves(alone, start, port):
    up = start("up", "--workers", "2", "--port", str(port))
    wait_until(lambda: "ready    try: stoker generate" in up.log)
    wait_until(lambda: len(descendants(up.pid)) == 6, what="guard and server, two supervisors and their children")

    up.send(signal.SIGKILL)

    assert_nothing_left(port)


def test_a_second_interrupt_does_not_disturb_the_stop(alone, start, port):
    up = start("up", "--port", str(port))
    wait_until(lambda: "ready    try: stoker generate" in up.log)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        up.send(number)

    assert up.wait() == 0
    assert "Traceback" not in up.log
    assert_nothing_left(port)


@pytest.mark.parametrize("max_tokens", [3000], ids=["half a minute of work"])
@pytest.mark.parametrize("moment", [0.0, 0.3, 0.6, 1.0, 1.5])
def test_an_interrupted_start_leaves_nothing(alone, start, source, moment):
    batch = start("batch", str(source), str(source.with_suffix(".out")), "--local")
    maps = Path(f"/proc/{batch.pid}/maps")
    wait_until(lambda: "/msgspec/" in maps.read_text())  # the command's modules are being loaded
    stays_true(lambda: batch.is_running, moment)

    batch.send(signal.SIGINT)

    assert batch.wait() == 130
    assert "Traceback" not in batch.log
    assert_nothing_left()


WRONG_MODEL = {"STOKER_ENGINE": "transformers", "STOKER_MAX_RESTARTS": "0"}


@pytest.mark.parametrize("command", ["up", "batch", "generate"])
def test_workers_that_cannot_start_end_the_command_with_their_reason(alone, start, source, port, command):
    arguments = {
        "up": ("up", "--port", str(port)),
        "batch": ("batch", str(source), str(source.with_suffix(".out")), "--local"),
        "generate": ("generate", "Hello", "--local"),
    }[command]
    run = start(*arguments, "--model", "/no/such/model", **WRONG_MODEL)

    assert run.wait() == 1
    assert "Traceback" not in run.log
    assert run.log.count("/no/such/model") == (2 if command == "up" else 1), run.log
    assert re.search("stoker: error: (?!.*(ERROR|stoker worker))", run.log)
    assert_nothing_left(port)


def test_who_waits_learns_that_the_workers_have_given_up_later(alone, tmp_path):
    """Nobody looked once the workers had been ready: a result was waited for without an end."""
    environment = SETTINGS | {"STOKER_MAX_RESTARTS": "0", "STOKER_SIMULATED_TOKENS_PER_S": "1"}
    with Driver(DriverSettings(engine="simulated"), worker_environment=environment) as driver:
        driver.wait_until_ready(30)
        with pytest.raises(DriverStateError, match="started before"):
            driver.start()
        task = driver.submit_task({"prompt": "<<die>>", "max_new_tokens": 100})
        with pytest.raises(WorkerStartError, match="crashed"):
            driver.get_result(task, timeout=60)
        with pytest.raises(WorkerStartError, match="crashed"):
            driver.check()
        driver.client.job(task).cancel()
        driver.scale_workers(1)
        driver.wait_until_ready(30).check()


def test_only_ones_own_workers_count_as_ready(standing):
    cluster = standing.healthy()
    settings = DriverSettings(engine="simulated", broker_url=cluster.url)
    environment = SETTINGS | {"STOKER_SIMULATED_LOAD_S": "60", "STOKER_WORKER_NAME": "slow"}
    with Driver(settings, worker_environment=environment) as driver:
        wait_until(lambda: any(row.worker.startswith("slow") for row in driver.client.workers()))
        with pytest.raises(NotFinishedError, match="0 of 1 workers are ready"):
            driver.wait_until_ready(0.5)


def test_a_local_batch_that_is_interrupted_is_finished_by_a_second_run(alone, start, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"prompt": f"p {i}", "max_tokens": n}}
        for i, n in enumerate([5] * 10 + [200] * 10)
    ]
    source.write_text("".join(json.dumps(item) + "\n" for item in lines))
    arguments = ("batch", str(source), str(target), "--local", "--model", "smollm2-135m")
    first = start(*arguments, STOKER_SIMULATED_TOKENS_PER_S="20")  # the long ones do not end meanwhile
    wait_until(lambda: target.exists() and len(target.read_text().splitlines()) >= 10)

    first.send(signal.SIGINT)

    assert first.wait() == 130
    assert "Traceback" not in first.log
    assert_nothing_left()
    written = target.read_text()
    assert len(written.splitlines()) < len(lines)
    second = start(*arguments)
    assert second.wait() == 0
    assert target.read_text().startswith(written)
    answered = [json.loads(item)["custom_id"] for item in target.read_text().splitlines()]
    assert sorted(answered, key=int) == [item["custom_id"] for item in lines]

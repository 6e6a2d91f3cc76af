"""The `stoker` command against real processes: batch files, single prompts, exit codes, and one line an error."""

import json
import signal
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driver.cli.app import app
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "requests.jsonl"
COMMANDS = ["up", "driver", "worker", "batch", "generate", "status", "drain", "scale", "quarantine", "flower"]


def line(custom_id, prompt="Hello", **body):
    body = {"prompt": prompt, "max_tokens": 3, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def answers(path):
    return {answer["custom_id"]: answer for answer in map(json.loads, path.read_text().splitlines())}


def job_of(path):
    """The job that answered the first line."""
    return json.loads(path.read_text().splitlines()[0])["response"]["request_id"].split("_")[1]


@pytest.fixture
def source(tmp_path):
    return tmp_path / "in.jsonl"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.jsonl"


def test_the_examples_get_one_good_answer_each_and_a_second_run_does_nothing(cluster, target):
    asked = {json.loads(item)["custom_id"] for item in EXAMPLES.read_text().splitlines()}

    first = cluster.stoker("batch", str(EXAMPLES), str(target), "--priority", "low", "--user", "me", "--weight", "2.5")

    assert first.returncode == 0, first.stderr
    record = cluster.store.queries.job(job_of(target))
    assert (record.priority, record.user, record.weight) == (-10, "me", 2.5)
    assert len(target.read_text().splitlines()) == len(asked)
    assert set(answers(target)) == asked
    assert all(answer["response"]["status_code"] == 200 for answer in answers(target).values())
    assert {answer["response"]["body"]["model"] for answer in answers(target).values()} == {"smollm2-135m"}
    written, before = target.read_bytes(), cluster.settled()
    second = cluster.stoker("batch", str(EXAMPLES), str(target))
    assert second.returncode == 0
    assert f"0 failed, {len(asked)} answered before" in second.stderr
    assert target.read_bytes() == written
    assert cluster.settled() == before


def test_bad_lines_get_an_error_with_their_number_and_the_others_their_answers(cluster, source, target):
    source.write_text("\n".join([line("good"), "{not json", line("hot", temperature=-1), "", line("last")]) + "\n")

    run = cluster.stoker("batch", str(source), str(target))

    assert run.returncode == 1
    assert "4 requests" in run.stderr
    assert "2 failed" in run.stderr
    results = [json.loads(item) for item in target.read_text().splitlines()]
    assert {r["custom_id"] for r in results if r["error"] is None} == {"good", "last"}
    messages = [r["error"]["message"] for r in results if r["error"] is not None]
    assert any("line 2" in message for message in messages)
    assert any("line 3" in message and "temperature" in message for message in messages)


def test_failures_go_to_the_errors_file_when_one_is_named(cluster, source, target, tmp_path):
    source.write_text("\n".join([line("good"), line("bad", prompt="<<fail>> please"), "[]"]) + "\n")
    errors = tmp_path / "errors.jsonl"

    run = cluster.stoker("batch", str(source), str(target), "--errors", str(errors))

    assert run.returncode == 1
    assert set(answers(target)) == {"good"}
    assert answers(errors)["bad"]["error"]["code"] == "engine_error"
    assert len(errors.read_text().splitlines()) == 2


def test_an_interrupted_batch_takes_its_requests_back_and_a_second_run_does_the_rest(cluster, source, target):
    short, long = [line(f"short {i}", f"short {i}") for i in range(5)], [line("long", "long", max_tokens=400)]
    source.write_text("\n".join(short + long) + "\n")
    run = cluster.start_stoker("batch", str(source), str(target))
    wait_until(lambda: target.exists() and len(target.read_text().splitlines()) == 5)

    run.send(signal.SIGTERM)  # as Ctrl-C

    assert run.wait() == 130
    assert "stoker: interrupted; what has an answer is written" in run.log
    assert "Traceback" not in run.log
    cluster.assert_clean()
    again = cluster.stoker("batch", str(source), str(target))
    assert again.returncode == 0
    assert "1 requests" in again.stderr
    assert "5 answered before" in again.stderr
    assert len(target.read_text().splitlines()) == len(answers(target)) == 6


def test_generate_prints_the_answer_and_nothing_else(cluster):
    run = cluster.stoker("generate", "Name three colours.", "--max-tokens", "5")

    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 5
    assert run.stderr == ""
    assert cluster.stoker("generate", "Name three colours.", "--max-tokens", "5").stdout == run.stdout


def test_a_request_that_fails_is_one_line_and_exit_code_1(cluster):
    run = cluster.stoker("generate", "<<fail>>")

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "stoker: error: engine_error: it failed, as asked\n"


def test_status_shows_driver_and_workers_and_speaks_json(cluster):
    shown = cluster.stoker("status")
    assert shown.returncode == 0
    assert "driver  leads" in shown.stdout
    assert {"a@e2e", "b@e2e"} <= set(shown.stdout.split())

    read = json.loads(cluster.stoker("status", "--json").stdout)
    assert read["driver"] is True
    assert [(row["worker"], row["state"]) for row in read["workers"]] == [("a@e2e", "ready"), ("b@e2e", "ready")]


def test_scale_sets_bounds_shows_them_and_takes_them_back(cluster):
    set_by = cluster.stoker("scale", "1,4").stdout.splitlines()[0]
    assert set_by == "set by   stoker scale 1,4"
    wait_until(lambda: cluster.store.scale.read().wanted >= 0)
    shown = cluster.stoker("scale", "auto").stdout
    assert "wanted   2" in shown
    assert "workers  2 ready, 0 loading, 0 draining" in shown
    wait_until(lambda: cluster.store.scale.read().wanted < 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("batch", "/no/such/file.jsonl", "/tmp/out.jsonl"), "error: /no/such/file.jsonl: No such file or directory"),
        (("generate", "Hello", "--temperature", "nan"), "temperature must be a number from 0 to 100, not nan"),
        (("generate", "", "--raw"), "prompt must not be empty"),
        (("status", "--broker", "http://127.0.0.1"), "must start with redis:// or rediss://"),
        (("batch", "/dev/stdin", "/tmp/out.jsonl"), "/dev/stdin is no regular file"),
        (("generate", b"\xff"), "content must be text that UTF-8 can hold"),
        (("status", "--broker", "redis://h:99999/0"), "no valid URL: port out of range"),
        (("scale", "many"), "'many' is neither a number of workers, nor MIN,MAX, nor auto"),
        (("scale", "3,1"), "from 3 to 1 workers cannot be"),
        (("quarantine", "retry", "no/1"), "nothing named 'no/1' is quarantined"),
    ],
)
def test_wrong_arguments_are_one_clear_line_and_exit_code_2(stoker_here, arguments, message):
    run = stoker_here(*arguments)

    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("stoker: error: ")
    assert len(run.stderr.splitlines()) == 1
    assert message in run.stderr


@pytest.mark.parametrize(("command", "code"), [("driver", 2), ("worker", 78)])
def test_an_option_of_the_url_that_celery_does_not_take_is_one_line(cluster, command, code):
    run = cluster.stoker(command, "--broker", f"{cluster.store.url}?socket_timeout=3")

    assert run.returncode == code
    assert len(run.stderr.splitlines()) == 1
    assert "Celery takes those of TLS only" in run.stderr


@pytest.mark.parametrize("command", [("generate", "Hello"), ("driver",), ("worker",)])
def test_a_broker_that_does_not_answer_is_one_line_and_exit_code_3(cluster, command):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        run = cluster.stoker(*command, "--broker", f"redis://:secret@127.0.0.1:{port}/0")

    assert run.returncode == 3
    assert len(run.stderr.splitlines()) == 1
    assert f"Redis at redis://:***@127.0.0.1:{port}/0 does not answer" in run.stderr
    assert "secret" not in run.stderr


@pytest.mark.parametrize("command", [(), *((command,) for command in COMMANDS), ("quarantine", "retry")])
def test_every_command_explains_itself(command):
    shown = CliRunner().invoke(app, [*command, "--help"])

    assert shown.exit_code == 0
    assert "Usage: " in shown.output
    if not command:
        assert all(name in shown.output for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("batch",),
        ("up", "--workers", "-1"),
        ("up", "--what"),
        ("up", "--port", "70000"),
        ("generate", "x", "--timeout", "nan"),
        ("drain", "x", "--timeout", "nan"),
    ],
)
def test_usage_errors_end_with_exit_code_2(arguments):
    assert CliRunner().invoke(app, list(arguments)).exit_code == 2

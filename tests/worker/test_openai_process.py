"""A server that the worker starts: it comes up, ends with the worker however that ends, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from broker.errors import ConfigurationError
from broker.messages import Request, SamplingParams
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.openai_process import ServerProcess, server_command
from gpu_worker.engine.openai_setup import open_openai
from gpu_worker.settings import WorkerSettings
from tests.support.process import children, descendants
from tests.support.waiting import wait_until

COMMAND = f"{sys.executable} -m tests.support.openai_fake {{port}}"


def settings(command=COMMAND, **more):
    return WorkerSettings(engine="openai", model="fake", openai_command=command, **more)


def gone(pids):
    return not any(map(runs, pids))


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(engine):
    """The guard, the server and its child."""
    guard = engine._backend._process.pid
    below = wait_until(lambda: len(found := descendants(guard)) >= 2 and found, what="a server and its child")
    return [guard, *below]


def generate(engine):
    engine.submit("x", Request(params=SamplingParams(temperature=0.0), prompt="Hello"))
    return wait_until(lambda: engine.step(0.1))[0].text


def test_it_serves_sleeps_wakes_and_ends_with_all_that_it_started():
    engine = open_openai(settings())
    assert generate(engine) == " one two"
    first = family(engine)
    engine.sleep()
    wait_until(lambda: gone(first), what="the end of the first server and its child")
    assert engine.step(0.0) == []
    engine.wake()
    assert generate(engine) == " one two"
    second = family(engine)
    engine.close()
    wait_until(lambda: gone(second), what="the end of the second server and its child")


def test_a_server_that_was_killed_ends_the_engine():
    engine = open_openai(settings())
    everybody = family(engine)
    os.kill(children(everybody[0])[0], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="the server ended with signal 9"):
        wait_until(lambda: engine.step(0.1))
    engine.close()
    wait_until(lambda: gone(everybody), what="the end of the server's child")


def test_a_guard_that_was_killed_leaves_nothing_behind_either():
    engine = open_openai(settings())
    everybody = family(engine)
    os.kill(everybody[0], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="the server ended with signal 9"):
        wait_until(lambda: engine.step(0.1))
    wait_until(lambda: gone(everybody), what="the end of the server and its child")
    engine.close()


def test_a_tokenizer_that_is_not_there_ends_the_server_again(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = set(children(os.getpid()))
    with pytest.raises(ConfigurationError, match=r"openai_tokenizer=.* cannot be loaded"):
        open_openai(settings(openai_tokenizer=str(tmp_path)))
    assert set(children(os.getpid())) <= before  # of which those of another test may have ended


def test_one_that_does_not_start_is_told_by_its_last_words():
    command = f"{sys.executable} -c 'import sys; sys.exit(\"no such flag\")' {{port}}"
    with pytest.raises(EngineDeadError, match="exit code 1; its last words: no such flag; it did not start"):
        open_openai(settings(command))


def test_one_that_does_not_come_back_leaves_the_engine_asleep():
    engine = open_openai(settings())
    engine.sleep()
    launch, engine._backend._launch = (
        engine._backend._launch,
        lambda: ServerProcess([sys.executable, "-c", "raise SystemExit(3)"]),
    )
    with pytest.raises(NoRoomError, match="does not come back: the server ended with exit code 3"):
        engine.wake()
    engine._backend._launch = launch
    engine.wake()
    assert generate(engine) == " one two"
    engine.close()


WORKER = """
import sys, threading
from gpu_worker.engine.openai_process import ServerProcess
server = ServerProcess(sys.argv[1:])
threading.Event().wait()
"""


def test_it_ends_with_a_worker_that_is_killed():
    command = server_command(COMMAND, model="fake", port=0)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, *command], stderr=subprocess.PIPE)
    assert worker.stderr.readline() == b"serving\n"
    everybody = descendants(worker.pid)
    assert len(everybody) == 3
    worker.kill()
    worker.wait()
    worker.stderr.close()
    wait_until(lambda: gone(everybody), what="the end of the server")


def test_the_server_sees_none_of_our_variables(monkeypatch, capfd):
    monkeypatch.setenv("STOKER_OPENAI_API_KEY", "secret")
    program = "import os; print([name for name in os.environ if name.startswith('STOKER')])"
    server = ServerProcess([sys.executable, "-c", program])
    wait_until(lambda: server.ended)
    assert "its last words: []" in server.ended
    server.stop()


def test_what_it_prints_never_holds_it_up(monkeypatch):
    with Path(os.devnull).open() as unwritable:
        monkeypatch.setattr(sys, "stderr", unwritable)
        server = ServerProcess([sys.executable, "-c", "print('x'); print('y' * 200_000)"])
        wait_until(lambda: server.ended)
        assert "exit code 0" in server.ended
        server.stop()


def test_a_command_is_filled_in():
    assert server_command("env serve '{model}' --port={port}", model="a b", port=7) == [
        "env",
        "serve",
        "a b",
        "--port=7",
    ]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("no-such-program {port}", "there is no program 'no-such-program'"),
        ("env 'x {port}", "cannot be read as a command line"),
        (
            "env transformers serve m --continuous-batching {port}",
            "samples every request as it was asked to for the first",
        ),
    ],
)
def test_a_command_that_cannot_work_is_refused(command, problem):
    with pytest.raises(ConfigurationError, match=problem):
        server_command(command, model="m", port=1)

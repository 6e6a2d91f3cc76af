"""Commands that somebody waits for, and a Redis that takes connections and never says a word."""

import socket

import pytest
from typer.testing import CliRunner

from broker import connection
from broker.errors import BrokerUnavailableError
from broker.messages import Request, SamplingParams
from driver.batch_feed import Share
from driver.cli import generate
from driver.cli.app import app
from driver.client import Client
from driver.job import Job


@pytest.fixture
def silent():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield listener


def connections(listener):
    """How often somebody has connected so far."""
    count = 0
    try:
        while True:
            listener.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


@pytest.mark.parametrize(
    "command",
    ["status", "ctl all memory", "drain w", "scale", "quarantine", "quarantine retry j/0", "generate x"],
)
def test_the_first_silence_is_the_last(silent, command, monkeypatch):
    monkeypatch.setattr(connection, "HURRY_S", 0.05)
    url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
    run = CliRunner().invoke(app, command.split(), env={"STOKER_BROKER_URL": url})
    assert isinstance(run.exception, BrokerUnavailableError)
    assert f"Redis at {url} does not answer" in str(run.exception)
    assert connections(silent) == 1


def test_others_try_again(silent, monkeypatch):
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 0.05)
    with Client(f"redis://127.0.0.1:{silent.getsockname()[1]}/0") as client, pytest.raises(BrokerUnavailableError):
        client.store.check()
    assert connections(silent) > 1


def test_who_interrupts_does_not_wait_for_a_redis_that_has_stopped(silent, monkeypatch):
    """The job is taken back before the end, and that must not take long."""
    monkeypatch.setattr(connection, "HURRY_S", 0.05)
    with Client(f"redis://127.0.0.1:{silent.getsockname()[1]}/0") as client:
        job = Job(client.store, "j")
        monkeypatch.setattr(client, "submit", lambda *_, **__: job)
        monkeypatch.setattr(job, "get", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            generate._generate(client, Request(prompt="x", params=SamplingParams()), "", Share(), None)
    assert connections(silent) == 1

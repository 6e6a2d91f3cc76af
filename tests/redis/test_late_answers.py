"""Commands at a terminal that tell Redis to change something, and a Redis that answers too late."""

import pytest
from typer.testing import CliRunner

from broker import connection
from broker.errors import BrokerUnavailableError
from driver.cli import app as command_line
from driver.cli.app import app
from driver.errors import UnconfirmedError

ENOUGH_MS = 60_000


@pytest.fixture
def mute(store, monkeypatch):
    """A Redis that answers what asks, and not what changes something."""
    monkeypatch.setattr(connection, "HURRY_S", 0.5)
    yield lambda: store.redis.execute_command("CLIENT", "PAUSE", ENOUGH_MS, "WRITE")
    store.redis.execute_command("CLIENT", "UNPAUSE")


@pytest.mark.parametrize(("command", "look"), [("scale 3", "scale"), ("drain w --no-wait", "status")])
def test_what_has_no_answer_may_have_been_done(stage, settings, mute, command, look):
    stage.worker("w")
    mute()
    environment = {"STOKER_BROKER_URL": settings.broker_url, "STOKER_NAMESPACE": settings.namespace}
    run = CliRunner().invoke(app, command.split(), env=environment)
    assert isinstance(run.exception, UnconfirmedError)
    assert str(run.exception).startswith(f"not confirmed, it may have been done: look with `stoker {look}`: Redis at ")


@pytest.mark.parametrize("kind", [BrokerUnavailableError, UnconfirmedError])
def test_only_where_there_may_be_no_broker_one_is_advised(kind, monkeypatch, capsys):
    def fail():
        raise kind("no answer")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    assert ended.value.code == 3
    assert ("start a broker with" in capsys.readouterr().err) == (kind is BrokerUnavailableError)
